// lane_total: the sum over the LANES lanes (a power of two, at most a subgroup) that share weight rows.
fn lane_total(value: vec4<f32>, thread: u32) -> vec4<f32> {
  var v = value;
  if (LANES > 32u) { v += subgroupShuffleXor(v, 32u); }
  if (LANES > 16u) { v += subgroupShuffleXor(v, 16u); }
  if (LANES > 8u) { v += subgroupShuffleXor(v, 8u); }
  if (LANES > 4u) { v += subgroupShuffleXor(v, 4u); }
  if (LANES > 2u) { v += subgroupShuffleXor(v, 2u); }
  if (LANES > 1u) { v += subgroupShuffleXor(v, 1u); }
  return v;
}
