// most_of, sum_of: reduce a vec4 a lane over the whole workgroup through workgroup memory; every lane gets the result.
// For devices without a fixed subgroup size: few barriers. PARTS divides WG. The next use needs no barrier in between.
const PARTS = 16u;
var<workgroup> reduce_lanes: array<vec4<f32>, WG>;
var<workgroup> reduce_parts: array<vec4<f32>, PARTS>;

fn most_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  reduce_lanes[lane] = value;
  workgroupBarrier();
  if (lane < PARTS) {
    var part = value;
    for (var i = lane + PARTS; i < WG; i += PARTS) { part = max(part, reduce_lanes[i]); }
    reduce_parts[lane] = part;
  }
  workgroupBarrier();
  var most = reduce_parts[0];
  for (var i = 1u; i < PARTS; i++) { most = max(most, reduce_parts[i]); }
  return most;
}

fn sum_of(value: vec4<f32>, lane: u32) -> vec4<f32> {
  reduce_lanes[lane] = value;
  workgroupBarrier();
  if (lane < PARTS) {
    var part = value;
    for (var i = lane + PARTS; i < WG; i += PARTS) { part += reduce_lanes[i]; }
    reduce_parts[lane] = part;
  }
  workgroupBarrier();
  var sum = vec4<f32>();
  for (var i = 0u; i < PARTS; i++) { sum += reduce_parts[i]; }
  return sum;
}
