// sink_weight: exp(a head's sink - its largest score): what the softmax's sum gains by a score that has no value.
//
// sinks   [num_heads] f32. Where a sink is so far above all scores that the exponent is clamped, their weights are 0.
@group(0) @binding(13) var<storage, read> sinks: array<f32>;
fn sink_weight(head: u32, most: f32) -> f32 { return exp(min(sinks[head] - most, 80.0)); }
