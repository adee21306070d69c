// Reads what memory.v1 packs and hashes, written from the comments of the .proto files alone: `node reader.mjs`
// compares it with the vectors beside it.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

// CRCs (retrieval.proto, QueryWords and Hit)

/** A function from bytes to their CRC, of a reflected polynomial; initial value and final XOR are 0xFFFFFFFF. */
function crcOf(reflected) {
  const table = new Uint32Array(256);
  for (let byte = 0; byte < 256; byte++) {
    let value = byte;
    for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ reflected : value >>> 1;
    table[byte] = value;
  }
  return (bytes) => {
    let crc = 0xffffffff;
    for (const byte of bytes) crc = (crc >>> 8) ^ table[(crc ^ byte) & 0xff];
    return (crc ^ 0xffffffff) >>> 0;
  };
}

export const crc32 = crcOf(0xedb88320);
export const crc32c = crcOf(0x82f63b78);

// Words (retrieval.proto, QueryWords)

const ALONE = "\\u3040-\\u30ff\\u3400-\\u9fff";
const UNSPACED = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff";
const LETTER = `(?![${ALONE}${UNSPACED}])[\\p{L}\\p{N}_]`;
const MARK = "(?=[\\u0900-\\u0dff])\\p{M}";
const WORD = new RegExp(`[${UNSPACED}]+|${LETTER}(?:${LETTER}|${MARK})*|[${ALONE}]`, "gu");
const TRIGRAMS = new RegExp(`^[${UNSPACED}]`, "u");
const ARABIC_MARKS = /[\u0640\u064b-\u065f\u0670]/gu;
const ARABIC_LETTERS = { "\u0622": "\u0627", "\u0623": "\u0627", "\u0625": "\u0627", "\u0649": "\u064a", "\u0629": "\u0647" };
const ARTICLE = /^(?:[\u0648\u0641\u0628\u0643]?\u0627\u0644|\u0644\u0644)(?=..)/u;
const STEM = 6;
const TRIGRAM = 3;

/** The text whose words are cut: lower case, Arabic without marks and with one form of each letter. */
function folded(text) {
  return text.toLowerCase().replace(ARABIC_MARKS, "").replace(/[\u0622\u0623\u0625\u0649\u0629]/gu, (c) => ARABIC_LETTERS[c]);
}

/** What is hashed of one run of characters. */
function stemsOf(word) {
  if (!TRIGRAMS.test(word)) return [Array.from(word.replace(ARTICLE, "")).slice(0, STEM).join("")]; // by code point
  const starts = Array.from({ length: Math.max(1, word.length - TRIGRAM + 1) }, (_, start) => start);
  return starts.map((start) => word.slice(start, start + TRIGRAM));
}

/** The hashes of a text's distinct words, in ascending order. */
export function queryWords(text) {
  const stems = (folded(text).match(WORD) ?? []).flatMap(stemsOf);
  return [...new Set(stems.map((stem) => crc32(Buffer.from(stem))))].sort((a, b) => a - b);
}

// Content hash (ingestion.proto, Acknowledgement)

function eightBytes(number) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return bytes;
}

/** SHA-256 in hexadecimal over title, metadata and the parts of the content (strings or bytes). */
function hashOf(title, metadata, parts) {
  const hash = createHash("sha256");
  const pairs = Object.entries(metadata).map((pair) => pair.map((text) => Buffer.from(text)));
  pairs.sort((a, b) => Buffer.compare(a[0], b[0]));
  for (const group of [[title], pairs.flat(), parts]) {
    hash.update(eightBytes(group.length));
    for (const part of group) {
      const bytes = Buffer.from(part);
      hash.update(eightBytes(bytes.length)).update(bytes);
    }
  }
  return hash.digest("hex");
}

/** The content hash of a Document. */
export function documentHash({ title, metadata, text, overlap_tokens: overlap }) {
  return hashOf(title, metadata, overlap ? [text, `overlap of ${overlap} tokens`] : [text]);
}

/** The content hash of a PreparedDocument; embeddings and payloads in hexadecimal. */
export function preparedHash({ title, metadata, references }) {
  const bytes = (hex) => Buffer.from(hex, "hex");
  return hashOf(title, metadata, references.flatMap((r) => [r.text, bytes(r.embedding), bytes(r.payload)]));
}

// Payload (retrieval.proto, Hit)

const HEADER_BYTES = 56;
const VERSION = 1;

/**
 * The tokens of a payload and its codes, block by block. model: ids in hexadecimal, heads ([layer, head, tokens]),
 * reference_tokens; code_bytes and together of its codec. Throws an Error for a payload of another model, or for none.
 */
export function readPayload(payload, model) {
  if (payload.length < HEADER_BYTES) throw new Error("shorter than a header");
  if (payload.toString("latin1", 0, 4) !== "M3EM") throw new Error("no payload");
  if (payload.readUInt16LE(4) !== VERSION) throw new Error("another version");
  const tokens = payload.readUInt16LE(6);
  for (const [place, name] of ["model_id", "codec_id", "memory_format_id"].entries()) {
    const found = payload.toString("hex", 8 + 16 * place, 24 + 16 * place);
    if (found !== model[name].slice(0, 32)) throw new Error(`another ${name}`);
  }
  if (tokens < 1 || tokens > model.reference_tokens) throw new Error("wrong number of tokens");
  const blocks = [];
  let offset = HEADER_BYTES;
  for (let group = 0; group < 2 * model.heads.length; group += model.together) {
    const [, , kept] = model.heads[Math.floor(group / 2)];
    const codes = [];
    for (let token = 0; token < Math.min(tokens, kept); token++, offset += model.code_bytes) {
      codes.push(payload.subarray(offset, offset + model.code_bytes));
    }
    blocks.push(codes);
  }
  if (offset !== payload.length) throw new Error("wrong length");
  return { tokens, blocks };
}

// Scalar codes (docs/reference/runtime.md): number n of a vector is offset[n] + step[n] * its code

function readScalarCode(code, { bits, offset, step }) {
  const number = (n) => (bits === 8 ? code[n] : (code[n >> 1] >> (4 * (n & 1))) & 15);
  return offset.map((start, n) => start + step[n] * number(n));
}

// Comparison with the vectors

let failures = 0;
function same(what, found, expected) {
  if (JSON.stringify(found) === JSON.stringify(expected)) return;
  failures += 1;
  console.error(`${what}: found ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
}

function refused(payload, model) {
  try {
    readPayload(payload, model);
    return false;
  } catch {
    return true;
  }
}

const vectors = (name) => JSON.parse(readFileSync(new URL(`${name}.json`, import.meta.url), "utf8"));
const check = Buffer.from("123456789");
same("CRC-32", crc32(check), 0xcbf43926);
same("CRC-32C", crc32c(check), 0xe3069283);
for (const { text, hashes } of vectors("words")) same(`words of ${JSON.stringify(text)}`, queryWords(text), hashes);
for (const { document, prepared, content_hash: expected } of vectors("content_hashes")) {
  same("content hash", document ? documentHash(document) : preparedHash(prepared), expected);
}
for (const model of vectors("payloads")) {
  const payload = Buffer.from(model.payload, "hex");
  const { tokens, blocks } = readPayload(payload, model);
  same("CRC-32C of a payload", crc32c(payload), model.crc32c);
  same("tokens", tokens, model.tokens);
  same("codes", blocks.map((codes) => codes.map((code) => code.toString("hex"))), model.blocks);
  for (const [why, wrong] of Object.entries(model.refused ?? {})) {
    same(`refused: ${why}`, refused(Buffer.from(wrong, "hex"), model), true);
  }
}
for (const codec of vectors("scalar_codecs")) {
  const found = codec.codes.map((code) => readScalarCode(Buffer.from(code, "hex"), codec));
  same(`vectors of ${codec.bits}-bit codes`, found, codec.vectors);
}
console.log(failures ? `${failures} differ` : "all vectors agree");
process.exitCode = failures ? 1 : 0;
