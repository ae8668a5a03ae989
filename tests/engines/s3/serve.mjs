// Serves a folder with the API of S3 on a free port, which it prints, until its input ends.
// Usage: node serve.mjs FOLDER BUCKET
import { mkdirSync } from "node:fs";
import S3rver from "s3rver";

const [directory, bucket] = process.argv.slice(2);
mkdirSync(directory, { recursive: true });
const server = new S3rver({
  address: "127.0.0.1",
  port: 0,
  silent: true,
  vhostBuckets: false,
  directory,
  configureBuckets: [{ name: bucket }],
});
const { port } = await server.run();
console.log(port);
process.stdin.resume().on("end", () => process.exit(0));
