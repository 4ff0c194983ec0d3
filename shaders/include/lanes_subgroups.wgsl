// lane_total: the sum over the LANES lanes that share weight rows, some whole subgroups, valid in the first of them.
const TOGETHER = LANES / SUBGROUP;
var<workgroup> lane_parts: array<vec4<f32>, WG / SUBGROUP>;

fn lane_total(value: vec4<f32>, thread: u32) -> vec4<f32> {
  let part = subgroupAdd(value);
  if (thread % SUBGROUP == 0u) { lane_parts[thread / SUBGROUP] = part; }
  workgroupBarrier();
  let first = thread / LANES * TOGETHER;
  var total = lane_parts[first] + lane_parts[first + 1u];
  for (var i = 2u; i < TOGETHER; i++) { total += lane_parts[first + i]; }
  workgroupBarrier();
  return total;
}
