// What both sampler kernels share: a sequence's settings, the random draw and keys that order floats.
// The hash and the series are src/emberd/reference/sampling.py's, step for step.
const NEG_LARGE = -3.0e38;
const RUN = 32u; // tokens of a run: a lane's share of a slice
const SLICE = 4096u; // tokens of a workgroup of sample_split
const RUNS = SLICE / RUN; // of a slice; run j holds its tokens j, j + RUNS, ...

struct Settings {
  temperature: f32, // 0: greedy
  top_p: f32, // 1: off
  log_min_p: f32, // NEG_LARGE: off
  top_k: u32, // 0: off
  seed_low: u32,
  seed_high: u32,
  repetition: f32,
  presence: f32,
  frequency: f32,
  window: i32, // 0: no penalties, -1: all tokens count
  biased: u32, // whether logit_bias holds a row of this sequence
}

// Rows whose token sample_split cannot settle: with a filter, or so cold that scores need the largest logit taken
// off first, or rounding decides between equal logits.
fn needs_merge(s: Settings) -> bool {
  let cold = s.temperature > 0.0 && s.temperature < 0.2;
  return cold || s.top_k > 0u || s.top_p < 1.0 || s.log_min_p > NEG_LARGE;
}

fn pcg(x: u32) -> u32 {
  let s = x * 747796405u + 2891336453u;
  let w = ((s >> ((s >> 28u) + 4u)) ^ s) * 277803737u;
  return (w >> 22u) ^ w;
}

fn row_key(s: Settings, position: u32) -> u32 {
  return pcg(pcg(pcg(s.seed_low) ^ s.seed_high) ^ position);
}

fn exponential(key: u32, token: u32) -> f32 {
  let u = min((f32(pcg(key ^ pcg(token))) + 0.5) * 2.3283064365386963e-10, 0.99999994);
  if (u < 0.03125) { return u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25))); }
  return -log(1.0 - u);
}

// By its bits: compilers may take it that floats are finite.
fn not_finite(x: f32) -> bool {
  return (bitcast<u32>(x) & 0x7f800000u) == 0x7f800000u;
}

// Unsigned integers in the order of the floats; both zeros are one.
fn ordered(x: f32) -> u32 {
  let bits = bitcast<u32>(select(x, 0.0, x == 0.0));
  return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}
