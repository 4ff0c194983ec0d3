// capped: a score as it is.
fn capped(score: Score) -> Score { return score; }
