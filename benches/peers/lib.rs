//! How the benches compare: operations in turns, so that a slow machine or a noisy neighbour touches all alike.

use std::time::Instant;

/// The median of each operation in µs, all of them run in turns.
pub fn in_turns(operations: &[(&str, &dyn Fn())]) -> Vec<f64> {
    const ROUNDS: usize = 201;
    const CALLS: u32 = 10;
    let mut times = vec![Vec::with_capacity(ROUNDS); operations.len()];
    for _ in 0..ROUNDS {
        for ((_, operation), times) in operations.iter().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..CALLS {
                operation();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
        }
    }
    times
        .into_iter()
        .map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        })
        .collect()
}
