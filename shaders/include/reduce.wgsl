// workgroup_sum, workgroup_max: reduce one value a lane over the whole workgroup through workgroup memory.
// For devices without a fixed subgroup size. WG must be a power of two. Both end in a barrier.
var<workgroup> reduce_scratch: array<f32, WG>;

fn workgroup_sum(value: f32, lane: u32) -> f32 {
  reduce_scratch[lane] = value;
  workgroupBarrier();
  for (var half = WG / 2u; half > 0u; half = half / 2u) {
    if (lane < half) { reduce_scratch[lane] += reduce_scratch[lane + half]; }
    workgroupBarrier();
  }
  let total = reduce_scratch[0];
  workgroupBarrier();
  return total;
}

fn workgroup_max(value: f32, lane: u32) -> f32 {
  reduce_scratch[lane] = value;
  workgroupBarrier();
  for (var half = WG / 2u; half > 0u; half = half / 2u) {
    if (lane < half) { reduce_scratch[lane] = max(reduce_scratch[lane], reduce_scratch[lane + half]); }
    workgroupBarrier();
  }
  let most = reduce_scratch[0];
  workgroupBarrier();
  return most;
}
