// top_experts: the USED likeliest of softmax(logits[t, :]), likeliest first, and their weights
//
// logits  [tokens, experts] f32     count [1] u32: tokens from it on are not touched
// ids     [tokens, USED] u32, out     weights  [tokens, USED] f32, out: times scale, made to sum up to 1 if NORMALIZED
// grid    (tokens, 1, 1); a lane looks at experts lane, lane + WG, ..; of equal ones the first counts
// USED, NORMALIZED (bool), WG power of two: const
struct Params { experts: u32, scale: f32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> count: array<u32>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;
const NEG_LARGE = -3.0e38;
var<workgroup> best: array<f32, WG>;
var<workgroup> best_id: array<u32, WG>;
var<workgroup> sums: array<f32, WG>;
var<workgroup> chosen: array<u32, USED>;
var<workgroup> chosen_logit: array<f32, USED>;

fn is_chosen(id: u32, so_far: u32) -> bool {
  for (var i = 0u; i < so_far; i++) { if (chosen[i] == id) { return true; } }
  return false;
}

@compute @workgroup_size(WG)
fn top_experts(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let token = group.x;
  if (token >= count[0]) { return; }
  let row = token * params.experts;
  for (var rank = 0u; rank < USED; rank++) {
    var most = NEG_LARGE;
    var id = params.experts;
    for (var i = lane; i < params.experts; i += WG) {
      if (logits[row + i] > most && !is_chosen(i, rank)) { most = logits[row + i]; id = i; }
    }
    best[lane] = most;
    best_id[lane] = id;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half = half / 2u) {
      if (lane < half) {
        let other = best[lane + half];
        let other_id = best_id[lane + half];
        if (other > best[lane] || (other == best[lane] && other_id < best_id[lane])) {
          best[lane] = other;
          best_id[lane] = other_id;
        }
      }
      workgroupBarrier();
    }
    if (lane == 0u) {
      chosen[rank] = min(best_id[0], params.experts - 1u); // in range even where logits are no numbers
      chosen_logit[rank] = best[0];
    }
    workgroupBarrier();
  }
  var sum = 0.0;
  if (NORMALIZED) {
    if (lane < USED) { sum = exp(chosen_logit[lane] - chosen_logit[0]); }
  } else {
    for (var i = lane; i < params.experts; i += WG) { sum += exp(logits[row + i] - chosen_logit[0]); }
  }
  sums[lane] = sum;
  workgroupBarrier();
  for (var half = WG / 2u; half > 0u; half = half / 2u) {
    if (lane < half) { sums[lane] += sums[lane + half]; }
    workgroupBarrier();
  }
  if (lane < USED) {
    ids[token * USED + lane] = chosen[lane];
    weights[token * USED + lane] = exp(chosen_logit[lane] - chosen_logit[0]) / sums[0] * params.scale;
  }
}
