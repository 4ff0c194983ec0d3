// For steps in which no sampled sequence has a bias.
fn biased(logit: f32, s: Settings, sequence: u32, token: u32) -> f32 { return logit; }
