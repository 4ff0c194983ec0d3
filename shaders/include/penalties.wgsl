// Penalties from what stands in a sequence's window. Needs params.vocab_size, params.ring.
// State of a sequence: how often each token stands in the window; how many tokens came so far; a ring of the last
// ones, which a finite window (<= params.ring) needs to know what leaves it.
@group(0) @binding(5) var<storage, read_write> penalty_state: array<u32>;

fn penalty_row(sequence: u32) -> u32 { return sequence * (params.vocab_size + 1u + params.ring); }

fn penalized(logit: f32, s: Settings, sequence: u32, token: u32) -> f32 {
  if (s.window == 0) { return logit; }
  let seen = penalty_state[penalty_row(sequence) + token];
  if (seen == 0u) { return logit; }
  let scaled = select(logit * s.repetition, logit / s.repetition, logit > 0.0);
  return scaled - (s.presence + s.frequency * f32(seen));
}

// Counts a sampled token; the oldest leaves a full window. For one lane.
fn remember(s: Settings, sequence: u32, token: u32) {
  if (s.window == 0) { return; }
  let row = penalty_row(sequence);
  penalty_state[row + token] += 1u;
  if (s.window < 0) { return; }
  let length_at = row + params.vocab_size;
  let length = penalty_state[length_at];
  let at = length_at + 1u + length % u32(s.window);
  if (length >= u32(s.window)) { penalty_state[row + penalty_state[at]] -= 1u; }
  penalty_state[at] = token;
  penalty_state[length_at] = length + 1u;
}
