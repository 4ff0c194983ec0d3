// workgroup_sum, workgroup_max: reduce one value a lane over the whole workgroup, subgroups first.
// For devices with one fixed subgroup size, SUBGROUP, which divides WG. Both end in a barrier.
var<workgroup> reduce_scratch: array<f32, WG / SUBGROUP>;

fn workgroup_sum(value: f32, lane: u32) -> f32 {
  let part = subgroupAdd(value);
  if (lane % SUBGROUP == 0u) { reduce_scratch[lane / SUBGROUP] = part; }
  workgroupBarrier();
  var total = 0.0;
  for (var i = 0u; i < WG / SUBGROUP; i++) { total += reduce_scratch[i]; }
  workgroupBarrier();
  return total;
}

fn workgroup_max(value: f32, lane: u32) -> f32 {
  let part = subgroupMax(value);
  if (lane % SUBGROUP == 0u) { reduce_scratch[lane / SUBGROUP] = part; }
  workgroupBarrier();
  var most = reduce_scratch[0];
  for (var i = 1u; i < WG / SUBGROUP; i++) { most = max(most, reduce_scratch[i]); }
  workgroupBarrier();
  return most;
}
