"use strict";
/** The bytes of a text of `scripts.py`: base 85, with two letters that mean nothing in HTML. */
function base85(text) {
  const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=>?@^_`{|}~";
  const values = new Uint8Array(128), groups = Math.ceil(text.length / 5), missing = 5 * groups - text.length;
  [...letters].forEach((letter, value) => (values[letter.charCodeAt(0)] = value));
  const bytes = new DataView(new ArrayBuffer(4 * groups));
  const value = (place) => (place < text.length ? values[text.charCodeAt(place)] : 84);
  for (let group = 0, at = 0; group < groups; group++, at += 5)
    bytes.setUint32(4 * group, (((value(at) * 85 + value(at + 1)) * 85 + value(at + 2)) * 85 + value(at + 3)) * 85 + value(at + 4));
  return new Uint8Array(bytes.buffer, 0, 4 * groups - missing);
}
// What `compact.py` has made of rows, symmetric matrices and numbers, as it was.
const expand = (() => {
  function rows(columns) {
    const names = Object.keys(columns), values = names.map((name) => expanded(columns[name]));
    return values[0].map((_, at) => Object.fromEntries(names.map((name, place) => [name, values[place][at]])));
  }
  function whole(half) {
    const rows = half.map(expanded);
    return rows.map((row, i) => rows.map((other, j) => (j <= i ? row[j] : other[i])));
  }
  function numbers([decimals, least, letters]) {
    const unit = 10 ** decimals, found = new Array(letters.length);
    for (let at = 0; at < letters.length; at++) found[at] = (letters.charCodeAt(at) - 35 + least) / unit;
    return found;
  }

  /** A value of JSON's types, in any depth. */
  function expanded(value) {
    if (value === null || typeof value !== "object") return value;
    if (Array.isArray(value)) return typeof value[0] === "object" ? value.map(expanded) : value;
    if ("@columns" in value) return rows(value["@columns"]);
    if ("@half" in value) return whole(value["@half"]);
    if ("@letters" in value) return numbers(value["@letters"]);
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, expanded(inner)]));
  }
  return expanded;
})();
