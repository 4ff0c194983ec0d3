// fifth_bits(h): bit 4i + j of the low 16 bits of h becomes bit 0 of byte j of word i.
fn fifth_bits(h: u32) -> vec4<u32> {
  let nibbles = (vec4<u32>(h) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(15u);
  return (nibbles * 0x00204081u) & vec4<u32>(0x01010101u);
}
