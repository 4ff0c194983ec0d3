// sample_split: what sample_merge needs to know of each slice of the vocabulary
//
// logits  [rows, vocab_size] f32     sequence_index [rows] i32, negative: no sample     positions [rows] i32
// settings [max_sequences] Settings  count [1] u32: rows from it on are not touched
// penalty_state, logit_bias, masks: where a row has some; read
// slices  [rows, num_slices] vec4, out: max, sum of exp((logit - max) / temperature) (if top-p needs it),
//         best score times temperature and its token (unless needs_merge)
// run_max [rows, num_slices * RUNS] f32, out: max of each run, by which sample_merge finds the top-k
// grid    (num_slices, rows, 1); WG = RUNS lanes, each a run
// Logits are taken as adjusted.wgsl gives them everywhere. Of tokens that a mask forbids NEG_LARGE is taken, which wins nothing.
struct Params { vocab_size: u32, num_slices: u32, ring: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> sequence_index: array<i32>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read> settings: array<Settings>;
@group(0) @binding(4) var<storage, read> count: array<u32>;
@group(0) @binding(8) var<storage, read_write> slices: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read_write> run_max: array<f32>;
@group(0) @binding(10) var<uniform> params: Params;
#include "include/sampling.wgsl"
#include "include/${penalties}.wgsl"
#include "include/${logit_bias}.wgsl"
#include "include/${mask}.wgsl"
#include "include/adjusted.wgsl"
#include "include/${reduce}.wgsl"

struct Best { most: f32, score: f32, token: u32 }

// The largest logit and the best score of a lane so far, `token` taken in. Its logit was read before, with others.
fn taking(before: Best, logit: f32, token: u32, end: u32, s: Settings, key: u32, draws: bool) -> Best {
  if (token >= end) { return before; }
  var b = before;
  b.most = max(b.most, logit);
  if (draws) {
    var score = logit;
    if (s.temperature > 0.0) { score -= s.temperature * log(exponential(key, token)); }
    if (score > b.score) {
      b.score = score;
      b.token = token;
    }
  }
  return b;
}

@compute @workgroup_size(WG)
fn sample_split(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.y;
  if (row >= count[0] || sequence_index[row] < 0) { return; }
  let sequence = u32(sequence_index[row]);
  let s = settings[sequence];
  let draws = !needs_merge(s);
  let key = row_key(s, u32(positions[row]));
  let first = group.x * SLICE + lane;
  let end = min(params.vocab_size, (group.x + 1u) * SLICE);
  let row_start = row * params.vocab_size;

  var b = Best(NEG_LARGE, NEG_LARGE, first);
  for (var token = first; token < end; token += 8u * RUNS) {
    let t = min(vec4<u32>(token) + vec4<u32>(0u, 1u, 2u, 3u) * RUNS, vec4<u32>(end - 1u));
    let u = min(vec4<u32>(token) + vec4<u32>(4u, 5u, 6u, 7u) * RUNS, vec4<u32>(end - 1u));
    let l0 = adjusted(logits[row_start + t.x], s, row, sequence, t.x);
    let l1 = adjusted(logits[row_start + t.y], s, row, sequence, t.y);
    let l2 = adjusted(logits[row_start + t.z], s, row, sequence, t.z);
    let l3 = adjusted(logits[row_start + t.w], s, row, sequence, t.w);
    let l4 = adjusted(logits[row_start + u.x], s, row, sequence, u.x);
    let l5 = adjusted(logits[row_start + u.y], s, row, sequence, u.y);
    let l6 = adjusted(logits[row_start + u.z], s, row, sequence, u.z);
    let l7 = adjusted(logits[row_start + u.w], s, row, sequence, u.w);
    b = taking(b, l0, token, end, s, key, draws);
    b = taking(b, l1, token + RUNS, end, s, key, draws);
    b = taking(b, l2, token + 2u * RUNS, end, s, key, draws);
    b = taking(b, l3, token + 3u * RUNS, end, s, key, draws);
    b = taking(b, l4, token + 4u * RUNS, end, s, key, draws);
    b = taking(b, l5, token + 5u * RUNS, end, s, key, draws);
    b = taking(b, l6, token + 6u * RUNS, end, s, key, draws);
    b = taking(b, l7, token + 7u * RUNS, end, s, key, draws);
  }
  run_max[(row * params.num_slices + group.x) * RUNS + lane] = b.most;

  let slice_max = workgroup_max(b.most, lane);
  var sum = 0.0;
  if (s.top_p < 1.0 && s.top_k == 0u) {
    for (var token = first; token < end; token += RUNS) {
      let logit = adjusted(logits[row_start + token], s, row, sequence, token);
      sum += exp((logit - slice_max) / s.temperature);
    }
  }
  let slice_sum = workgroup_sum(sum, lane);
  let slice_best = workgroup_max(b.score, lane);
  // The lowest token among equals: tokens are exact in f32, the vocabulary being below 2^24.
  let token = -workgroup_max(select(NEG_LARGE, -f32(b.token), b.score == slice_best), lane);
  if (lane == 0u) {
    slices[row * params.num_slices + group.x] = vec4<f32>(slice_max, slice_sum, slice_best, token);
  }
}
