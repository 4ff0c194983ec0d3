// normalize_head: rms norm of the head in workgroup memory, by q_norm or k_norm.
// Needs `heads`, `params.eps`, HEAD_DIM, WG. Every lane calls it, `heads` being filled; ends in a barrier.
@group(0) @binding(9) var<storage, read> q_norm: array<f32>;
@group(0) @binding(10) var<storage, read> k_norm: array<f32>;
#include "include/${reduce}.wgsl"

fn normalize_head(is_query: bool, lane: u32) {
  var sum = 0.0;
  for (var i = lane; i < HEAD_DIM; i += WG) { sum += heads[i] * heads[i]; }
  let scale = inverseSqrt(workgroup_sum(sum, lane) / f32(HEAD_DIM) + params.eps);
  for (var i = lane; i < HEAD_DIM; i += WG) {
    var weight = k_norm[i];
    if (is_query) { weight = q_norm[i]; }
    heads[i] = heads[i] * scale * weight;
  }
  workgroupBarrier();
}
