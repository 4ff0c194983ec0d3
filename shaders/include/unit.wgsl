// Unit: 32 weights of a row as two halves of 16, what load_unit of every quant type gives.
//
// Weight i of a half is scale * q - minimum, q being signed byte i of lo (scale.x, minimum.x) or hi (.y).
// unit_chunks(u) says which 16 columns the halves stand for, as indices of 16-column chunks in the row.
// A type's fetch_unit(i) only reads, and its unpack_unit(packed, i) only computes, so that a kernel can do other work
// between the two; i = row * params.units + u.
struct Unit { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, minimum: vec2<f32> }

fn load_unit(row: u32, u: u32) -> Unit {
  let i = row * params.units + u;
  return unpack_unit(fetch_unit(i), i);
}
