// Prints the JSON Schemas of types of GitLab's API, as the client @gitbeaker/core declares them.
// Arguments: the names of the types.
import { createGenerator } from "ts-json-schema-generator";

const generator = createGenerator({
  path: "node_modules/@gitbeaker/core/dist/index.d.ts",
  skipTypeCheck: true,
  additionalProperties: false,
  expose: "all",
});
const definitions = {};
for (const name of process.argv.slice(2)) {
  Object.assign(definitions, generator.createSchema(name).definitions);
}
console.log(JSON.stringify(definitions));
