// most_of, sum_of: reduce a vec4 a lane over the whole workgroup, subgroups first; every lane gets the result.
// For devices with one fixed subgroup size, SUBGROUP, which divides WG. A barrier must lie between two uses.
const SUBGROUPS = WG / SUBGROUP;
var<workgroup> reduce_parts: array<vec4<f32>, SUBGROUPS>;

fn most_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  var part = value;
  for (var mask = SUBGROUP / 2u; mask > 0u; mask = mask / 2u) { part = max(part, subgroupShuffleXor(part, mask)); }
  if (lane % SUBGROUP == 0u) { reduce_parts[lane / SUBGROUP] = part; }
  workgroupBarrier();
  var most = reduce_parts[0];
  for (var i = 1u; i < SUBGROUPS; i++) { most = max(most, reduce_parts[i]); }
  return most;
}

fn sum_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  var part = value;
  for (var mask = SUBGROUP / 2u; mask > 0u; mask = mask / 2u) { part += subgroupShuffleXor(part, mask); }
  if (lane % SUBGROUP == 0u) { reduce_parts[lane / SUBGROUP] = part; }
  workgroupBarrier();
  var sum = reduce_parts[0];
  for (var i = 1u; i < SUBGROUPS; i++) { sum += reduce_parts[i]; }
  return sum;
}
