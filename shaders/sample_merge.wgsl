// sample_merge: one token a row from what sample_split found; see reference/sampling.py for what is kept
//
// logits, sequence_index, positions, settings, count, penalty_state, logit_bias, masks, slices, run_max: as in sample_split
// out_tokens [rows] i32, out: the token, -1 for rows that do not sample and where no score is finite: NaN in the logits
// last_tokens [max_sequences] u32, out
// grid    (rows, 1, 1); one workgroup a row
// WG      power of two, const
//
// Most rows without filters: the best of the slices' best. Others: tokens that may be kept are gathered in workgroup
// memory (all of them are scanned where they are if they do not fit), top-k bisects for its threshold, and top-p
// needs none: the draw's winner among all is the winner among the kept if it is kept itself, that is, if the
// mass of likelier tokens is < top_p; else the winner among the likelier ones is tried. 1 / top_p tries on average.
// tried   bisecting for the top-p threshold too: 15 to 30 scans where this takes two
struct Params { vocab_size: u32, num_slices: u32, ring: u32 }
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(1) var<storage, read> sequence_index: array<i32>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read> settings: array<Settings>;
@group(0) @binding(4) var<storage, read> count: array<u32>;
@group(0) @binding(8) var<storage, read> slices: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read> run_max: array<f32>;
@group(0) @binding(10) var<storage, read_write> out_tokens: array<i32>;
@group(0) @binding(11) var<storage, read_write> last_tokens: array<u32>;
@group(0) @binding(12) var<uniform> params: Params;
#include "include/sampling.wgsl"
#include "include/${penalties}.wgsl"
#include "include/${logit_bias}.wgsl"
#include "include/${mask}.wgsl"
#include "include/adjusted.wgsl"
#include "include/${reduce}.wgsl"

const DRAW_SPAN = 26.0; // -log(exponential) lies between -2.9 and 22.9: less likely tokens cannot win
const ROOM = 1024u; // runs, and tokens, that workgroup memory holds
var<workgroup> runs: array<u32, ROOM>;
var<workgroup> kept_logit: array<f32, ROOM>;
var<workgroup> kept_token: array<u32, ROOM>;
var<workgroup> num_runs: atomic<u32>;
var<workgroup> num_kept: atomic<u32>;

struct Row { row: u32, sequence: u32, key: u32, largest: f32, gathered: bool, num_entries: u32 }
struct Found { count: u32, mass: f32, token: u32, logit: f32 } // mass in units of the largest token's; the winner

fn logit_of(r: Row, s: Settings, token: u32) -> f32 {
  return adjusted(logits[r.row * params.vocab_size + token], s, r.row, r.sequence, token);
}

// Tokens whose logit is at least `least` (an ordered key): how many, their mass, the draw's winner among them.
fn scan(r: Row, s: Settings, least: u32, lane: u32) -> Found {
  var count = 0.0;
  var mass = 0.0;
  var best = NEG_LARGE;
  var best_token = params.vocab_size;
  var best_logit = NEG_LARGE;
  for (var i = lane; i < r.num_entries; i += WG) {
    var token = i;
    if (r.gathered) { token = kept_token[i]; }
    var logit = 0.0;
    if (r.gathered) { logit = kept_logit[i]; } else { logit = logit_of(r, s, token); }
    if (ordered(logit) >= least) {
      count += 1.0;
      let z = (logit - r.largest) / s.temperature;
      mass += exp(z);
      let score = z - log(exponential(r.key, token));
      if (score > best || (score == best && token < best_token)) {
        best = score;
        best_token = token;
        best_logit = logit;
      }
    }
  }
  let most = workgroup_max(best, lane);
  let token = u32(-workgroup_max(select(NEG_LARGE, -f32(best_token), best == most), lane));
  let logit = workgroup_max(select(NEG_LARGE, best_logit, best_token == token), lane);
  return Found(u32(workgroup_sum(count, lane)), workgroup_sum(mass, lane), token, logit);
}

fn count_of(r: Row, s: Settings, least: u32, lane: u32) -> u32 {
  var count = 0.0;
  for (var i = lane; i < r.num_entries; i += WG) {
    var logit = 0.0;
    if (r.gathered) { logit = kept_logit[i]; } else { logit = logit_of(r, s, i); }
    count += select(0.0, 1.0, ordered(logit) >= least);
  }
  return u32(workgroup_sum(count, lane));
}

// A key that at least top_k tokens reach: at least top_k runs have a maximum there, and at most about twice as many.
fn top_k_bound(r: Row, s: Settings, lane: u32) -> u32 {
  let all_runs = params.num_slices * RUNS;
  if (s.top_k > all_runs) { return 0u; }
  var low = 0u;
  var high = ordered(r.largest) + 1u;
  while (high - low > 1u) {
    let middle = low + (high - low) / 2u;
    var count = 0.0;
    for (var i = lane; i < all_runs; i += WG) {
      count += select(0.0, 1.0, ordered(run_max[r.row * all_runs + i]) >= middle);
    }
    let reached = u32(workgroup_sum(count, lane));
    if (reached < s.top_k) {
      high = middle;
    } else {
      low = middle;
      if (reached <= 2u * s.top_k) { break; }
    }
  }
  return low;
}

// Collects the tokens that reach `least` in workgroup memory; false if there are too many.
fn gather(r: Row, s: Settings, least: u32, lane: u32) -> bool {
  let all_runs = params.num_slices * RUNS;
  if (lane == 0u) {
    atomicStore(&num_runs, 0u);
    atomicStore(&num_kept, 0u);
  }
  workgroupBarrier();
  for (var i = lane; i < all_runs; i += WG) {
    if (ordered(run_max[r.row * all_runs + i]) >= least) {
      let place = atomicAdd(&num_runs, 1u);
      if (place < ROOM) { runs[place] = i; }
    }
  }
  workgroupBarrier();
  let found = atomicLoad(&num_runs);
  if (found > ROOM) { return false; }
  for (var i = lane; i < found * RUN; i += WG) {
    let run = runs[i / RUN];
    let token = run / RUNS * SLICE + run % RUNS + i % RUN * RUNS;
    if (token < params.vocab_size) {
      let logit = logit_of(r, s, token);
      if (ordered(logit) >= least) {
        let place = atomicAdd(&num_kept, 1u);
        if (place < ROOM) {
          kept_logit[place] = logit;
          kept_token[place] = token;
        }
      }
    }
  }
  workgroupBarrier();
  return atomicLoad(&num_kept) <= ROOM;
}

// The token of a row with filters. `all_mass` is the mass of all tokens, if top-p is over all.
fn draw_filtered(row: Row, s: Settings, all_mass: f32, lane: u32) -> u32 {
  var r = row;
  let top_key = ordered(r.largest);
  var least = 0u; // of min-p, and of top-p 0
  if (s.log_min_p > NEG_LARGE) { least = ordered(r.largest + s.temperature * s.log_min_p); }
  if (s.top_p <= 0.0) { least = top_key; }
  let by_mass = s.top_p > 0.0 && s.top_p < 1.0;

  var bound = 0u; // no token below it is kept, nor counts for what is kept
  if (s.top_k > 0u) {
    bound = top_k_bound(r, s, lane);
  } else if (by_mass) {
    // Tokens of mass up to (1 - top_p) / vocab_size of all together leave top_p to the others.
    let most_left = log((1.0 - s.top_p) * all_mass / f32(params.vocab_size));
    bound = ordered(r.largest + s.temperature * (most_left - 0.01));
  }
  if (s.top_k == 0u || !by_mass) { bound = max(bound, least); }
  if (s.top_k == 0u && !by_mass) { bound = max(bound, ordered(r.largest - DRAW_SPAN * s.temperature)); }
  bound = max(bound, ordered(NEG_LARGE) + 1u); // what a mask forbids
  r.gathered = gather(r, s, bound, lane);
  r.num_entries = select(params.vocab_size, atomicLoad(&num_kept), r.gathered);

  var low = bound;
  if (s.top_k > 0u && count_of(r, s, bound, lane) > s.top_k) {
    var high = top_key + 1u;
    while (high - low > 1u) {
      let middle = low + (high - low) / 2u;
      let reached = count_of(r, s, middle, lane);
      if (reached < s.top_k) { high = middle; } else { low = middle; }
      if (reached == s.top_k) { break; }
    }
  }
  var enough = s.top_p * all_mass;
  if (by_mass && s.top_k > 0u) { enough = s.top_p * scan(r, s, low, lane).mass; }
  var from_key = max(low, least);
  var winner = scan(r, s, from_key, lane);
  while (by_mass) {
    from_key = max(from_key, ordered(winner.logit)) + 1u;
    let likelier = scan(r, s, from_key, lane);
    if (likelier.token >= params.vocab_size || likelier.mass < enough) { break; } // none, or none that is finite
    winner = likelier;
  }
  return winner.token;
}

@compute @workgroup_size(WG)
fn sample_merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.x;
  if (row >= count[0] || sequence_index[row] < 0) {
    if (lane == 0u) { out_tokens[row] = -1; }
    return;
  }
  let sequence = u32(sequence_index[row]);
  let s = settings[sequence];

  var most = NEG_LARGE;
  var best = NEG_LARGE;
  var best_token = f32(params.vocab_size);
  for (var i = lane; i < params.num_slices; i += WG) {
    let slice = slices[row * params.num_slices + i];
    most = max(most, slice.x);
    if (slice.z > best) {
      best = slice.z;
      best_token = slice.w;
    }
  }
  let largest = workgroup_max(most, lane);
  let winning = workgroup_max(best, lane);
  var token = u32(-workgroup_max(select(NEG_LARGE, -best_token, best == winning), lane));
  if (needs_merge(s)) {
    var mass = 0.0;
    for (var i = lane; i < params.num_slices; i += WG) {
      let slice = slices[row * params.num_slices + i];
      mass += slice.y * exp((slice.x - largest) / s.temperature);
    }
    let all_mass = workgroup_sum(mass, lane);
    let r = Row(row, sequence, row_key(s, u32(positions[row])), largest, false, params.vocab_size);
    token = draw_filtered(r, s, all_mass, lane);
  }
  if (lane == 0u) {
    // Comparisons with NaN fail, so that nothing is found; infinity is told by its exponent.
    let none = select(winning <= NEG_LARGE || not_finite(winning), token >= params.vocab_size, needs_merge(s));
    token = min(token, params.vocab_size - 1u);
    out_tokens[row] = select(i32(token), -1, none);
    last_tokens[sequence] = token;
    remember(s, sequence, token);
  }
}
