// Nibbles as the signed bytes that they stand for: CODES_0 to CODES_3 of a type, as unsigned bytes.
//
// Four bytes at a time: each bit of the nibbles halves the choice, by masks. No table is read.
fn bit_mask(v: vec4<u32>, bit: u32) -> vec4<u32> {
  return ((v >> vec4<u32>(bit)) & vec4<u32>(0x01010101u)) * 255u;
}

fn chosen(zero: vec4<u32>, one: vec4<u32>, mask: vec4<u32>) -> vec4<u32> { return zero ^ (mask & (zero ^ one)); }

// Four codes in a row, by the nibble's lower bits.
fn quarter(codes: vec4<u32>, first: vec4<u32>, second: vec4<u32>) -> vec4<u32> {
  let splat = codes * 0x01010101u;
  return chosen(
    chosen(vec4<u32>(splat.x), vec4<u32>(splat.y), first), chosen(vec4<u32>(splat.z), vec4<u32>(splat.w), first), second);
}

// Of the lower nibble of each byte.
fn codes_of(v: vec4<u32>) -> vec4<u32> {
  let first = bit_mask(v, 0u);
  let second = bit_mask(v, 1u);
  let third = bit_mask(v, 2u);
  return chosen(
    chosen(quarter(CODES_0, first, second), quarter(CODES_1, first, second), third),
    chosen(quarter(CODES_2, first, second), quarter(CODES_3, first, second), third), bit_mask(v, 3u));
}
