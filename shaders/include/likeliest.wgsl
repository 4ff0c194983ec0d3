// The TOP largest of many (value, token) pairs that lanes share out, in order: the lowest token first among equals.
// The including kernel gives `entry(i)`, pair i, and `keep(place, pair)`. Token ids are exact in f32; NONE: no more pairs.
const TOP = 20u; // MAX_LOGPROBS
const NONE = 16777216.0; // above every token

fn comes_after(a: vec2<f32>, b: vec2<f32>) -> bool { return a.x < b.x || (a.x == b.x && a.y > b.y); }

// The first of a lane's pairs, `lane`, `lane` + WG, ... below `end`, that comes after `last`.
fn next_of(last: vec2<f32>, lane: u32, end: u32) -> vec2<f32> {
  var best = vec2<f32>(NEG_LARGE, NONE);
  for (var i = lane; i < end; i += WG) {
    let pair = entry(i);
    if (comes_after(pair, last) && comes_after(best, pair)) { best = pair; }
  }
  return best;
}

// Lane 0 keeps each of them.
fn likeliest(lane: u32, end: u32) {
  var mine = next_of(vec2<f32>(-NEG_LARGE, -1.0), lane, end);
  for (var place = 0u; place < TOP; place++) {
    let value = workgroup_max(mine.x, lane);
    let token = -workgroup_max(select(-NONE, -mine.y, mine.x == value), lane);
    let found = vec2<f32>(value, token);
    if (lane == 0u) { keep(place, found); }
    if (mine.y == token) { mine = next_of(found, lane, end); }
  }
}
