// SPDX-License-Identifier: MIT
// Writes the types and routes of an OpenAPI document of agentbox as TypeScript.
//
//   node scripts/make-types.mjs DOCUMENT [FILE]    DOCUMENT: a file, `-` or the address of a server's /openapi.json
//
// Without FILE the text goes to standard output.

import { readFile, writeFile } from "node:fs/promises";
import { text } from "node:stream/consumers";

const METHODS = ["get", "put", "post", "delete"];
// Lists that the operator of each server chooses: a type that has one server's would be wrong for the next.
const OPEN_LISTS = new Set(["backend"]);

/** @typedef {Record<string, any>} Json */

async function read(/** @type {string} */ source) {
  if (source === "-") return text(process.stdin);
  if (/^https?:/.test(source)) return (await fetch(source)).text();
  return readFile(source, "utf8");
}

const pascal = (/** @type {string} */ name) => name.replace(/(?:^|_)(\w)/g, (_, letter) => letter.toUpperCase());
const key = (/** @type {string} */ name) => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name));

function comment(/** @type {string | undefined} */ words, indent = "") {
  if (!words) return "";
  return `${indent}/** ${words.replaceAll("*/", "*\\/").replace(/\s+/g, " ").trim()} */\n`;
}

/** The type of a schema as text; `name` is the property that has it. */
function type(/** @type {Json | boolean | undefined} */ schema, indent = "", name = "") {
  if (schema === undefined || schema === true) return "unknown";
  // Beside a type, `not` says what no type can.
  if (schema === false || ("not" in schema && !("type" in schema))) return "never";
  if (schema.$ref) return pascal(schema.$ref.split("/").at(-1));
  if ("const" in schema) return JSON.stringify(schema.const);
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return union(choices.map((/** @type {Json} */ one) => type(one, indent, name)));
  if (schema.enum && !OPEN_LISTS.has(name)) return union(schema.enum.map((/** @type {unknown} */ one) => JSON.stringify(one)));
  if (Array.isArray(schema.type)) {
    return union(schema.type.map((/** @type {string} */ one) => type({ ...schema, type: one }, indent, name)));
  }
  switch (schema.type) {
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "array":
      return list(schema, indent);
    case "object":
      return object(schema, indent);
    default:
      return "unknown";
  }
}

const union = (/** @type {string[]} */ types) => [...new Set(types)].join(" | ");

function list(/** @type {Json} */ schema, /** @type {string} */ indent) {
  if (schema.prefixItems) return `[${schema.prefixItems.map((/** @type {Json} */ item) => type(item, indent)).join(", ")}]`;
  const item = type(schema.items, indent);
  return item.includes("|") && !item.startsWith("{") ? `(${item})[]` : `${item}[]`;
}

function object(/** @type {Json} */ schema, /** @type {string} */ indent) {
  const properties = Object.entries(schema.properties ?? {});
  if (properties.length === 0) {
    const values = schema.additionalProperties;
    return `Record<string, ${values ? type(values === true ? undefined : values, indent) : "unknown"}>`;
  }
  const required = new Set(schema.required ?? []);
  const inner = `${indent}  `;
  const lines = properties.map(([name, value]) => {
    const mark = required.has(name) ? "" : "?";
    return `${comment(value.description, inner)}${inner}${key(name)}${mark}: ${type(value, inner, name)};\n`;
  });
  return `{\n${lines.join("")}${indent}}`;
}

function declaration(/** @type {string} */ name, /** @type {Json} */ schema) {
  const body = type(schema);
  const isInterface = schema.type === "object" && body.startsWith("{");
  return comment(schema.description) + (isInterface ? `export interface ${name} ${body}\n` : `export type ${name} = ${body};\n`);
}

/** Every operation of the document: its method, path and definition. */
function* operations(/** @type {Json} */ document) {
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const method of METHODS) if (methods[method]) yield { method, path, operation: methods[method] };
  }
}

/** Schemas that stand inside an operation get its name: AnswerOf of what succeeds, BodyOf of what is sent. */
function* inlineSchemas(/** @type {Json} */ document) {
  for (const { operation } of operations(document)) {
    const name = pascal(operation.operationId);
    const sent = operation.requestBody?.content?.["application/json"]?.schema;
    if (sent && !sent.$ref) yield declaration(`${name}Body`, sent);
    for (const [status, answer] of Object.entries(operation.responses)) {
      const given = answer.content?.["application/json"]?.schema;
      if (status.startsWith("2") && given && !given.$ref) yield declaration(`${name}Answer`, given);
    }
  }
}

function generate(/** @type {Json} */ document) {
  const schemas = Object.entries(document.components?.schemas ?? {});
  const routes = [...operations(document)].map(
    ({ method, path, operation }) =>
      `${comment(operation.summary, "  ")}  ${operation.operationId}: { method: "${method.toUpperCase()}", path: "${path}" },\n`,
  );
  return [
    "// SPDX-License-Identifier: MIT\n// Made by scripts/make-types.mjs from the server's OpenAPI document: do not edit.\n",
    ...schemas.map(([name, schema]) => declaration(pascal(name), schema)),
    ...inlineSchemas(document),
    `/** Where the server answers: an operation's method and path. */\nexport const ROUTES = {\n${routes.join("")}} as const;\n`,
    "/** Name of an operation. */\nexport type Operation = keyof typeof ROUTES;\n",
  ].join("\n");
}

const [source, file] = process.argv.slice(2);
if (!source) {
  console.error("usage: node scripts/make-types.mjs DOCUMENT [FILE]");
  process.exit(2);
}
const written = generate(JSON.parse(await read(source)));
if (file) await writeFile(file, written);
else process.stdout.write(written);
