// sink_weight: no head has a sink.
fn sink_weight(head: u32, most: f32) -> f32 { return 0.0; }
