// most_of, sum_of: reduce a vec4 a lane over the whole workgroup, subgroups first; every lane gets the result.
// For devices with one fixed subgroup size, SUBGROUP, which divides WG. A barrier must lie between two uses.
const SUBGROUPS = WG / SUBGROUP;
var<workgroup> reduce_parts: array<vec4<f32>, SUBGROUPS>;

fn most_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  let part = vec4<f32>(
    subgroupMax(value.x), subgroupMax(value.y), subgroupMax(value.z), subgroupMax(value.w));
  if (lane % SUBGROUP == 0u) { reduce_parts[lane / SUBGROUP] = part; }
  workgroupBarrier();
  let other = reduce_parts[lane % SUBGROUPS];
  if (SUBGROUPS > SUBGROUP) {
    var most = reduce_parts[0];
    for (var i = 1u; i < SUBGROUPS; i++) { most = max(most, reduce_parts[i]); }
    return most;
  }
  return vec4<f32>(subgroupMax(other.x), subgroupMax(other.y), subgroupMax(other.z), subgroupMax(other.w));
}

fn sum_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  let part = vec4<f32>(
    subgroupAdd(value.x), subgroupAdd(value.y), subgroupAdd(value.z), subgroupAdd(value.w));
  if (lane % SUBGROUP == 0u) { reduce_parts[lane / SUBGROUP] = part; }
  workgroupBarrier();
  var sum = vec4<f32>();
  for (var i = 0u; i < SUBGROUPS; i++) { sum += reduce_parts[i]; }
  return sum;
}
