// Prints, as one JSON object, the faults of AsyncAPI documents and of JSON Schemas with their examples.
// Arguments: a JSON file with {"asyncapi": [path, …], "schemas": {name: schema}, "examples": {name: [document, …]}}.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";
import Ajv2020 from "ajv/dist/2020.js";
import addFormats from "ajv-formats";

const ERROR = 0;
const { asyncapi, schemas, examples } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const faults = {};

for (const path of asyncapi) {
  const { document, diagnostics } = await new Parser().parse(readFileSync(path, "utf8"), { source: path });
  const errors = diagnostics.filter((one) => one.severity === ERROR);
  faults[path] = errors.map((one) => `${one.path.join("/")}: ${one.message}`);
  if (document === undefined && errors.length === 0) faults[path].push("not parsed");
}

const ajv = addFormats(new Ajv2020({ strict: true, allErrors: true }));
for (const [name, schema] of Object.entries(schemas)) {
  faults[name] = [];
  try {
    const validate = ajv.compile(schema);
    for (const example of examples[name] ?? []) {
      if (!validate(example)) faults[name].push(ajv.errorsText(validate.errors));
    }
  } catch (error) {
    faults[name].push(String(error));
  }
}
console.log(JSON.stringify(faults));
