// Unit: 32 weights of a row as two halves of 16, what load_unit of every quant type gives.
//
// Weight i of a half is scale * q - minimum, q being signed byte i of lo (scale.x, minimum.x) or hi (.y).
// unit_chunks(u) says which 16 columns the halves stand for, as indices of 16-column chunks in the row.
struct Unit { lo: vec4<u32>, hi: vec4<u32>, scale: vec2<f32>, minimum: vec2<f32> }
