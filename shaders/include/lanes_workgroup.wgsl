// lane_total: the sum over the LANES lanes (a power of two) that share weight rows, valid in the first of them.
var<workgroup> lane_scratch: array<vec4<f32>, WG>;

fn lane_total(value: vec4<f32>, thread: u32) -> vec4<f32> {
  lane_scratch[thread] = value;
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half = half / 2u) {
    if (thread % LANES < half) { lane_scratch[thread] += lane_scratch[thread + half]; }
    workgroupBarrier();
  }
  let total = lane_scratch[thread];
  workgroupBarrier();
  return total;
}
