// For steps in which no sampled sequence has penalties: no state is read or kept.
fn penalized(logit: f32, s: Settings, sequence: u32, token: u32) -> f32 { return logit; }

fn remember(s: Settings, sequence: u32, token: u32) {}
