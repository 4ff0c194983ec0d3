// capped: CAP * tanh(score / CAP). CAP is in the kernel's own unit of scores. tanh may overflow far out.
fn capped(score: Score) -> Score { return CAP * tanh(clamp(score / CAP, Score(-15.0), Score(15.0))); }
