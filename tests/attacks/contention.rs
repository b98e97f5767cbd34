//! Scales a limit on time by the share of the CPU that other processes leave: an agent that has half
//! of the CPU may take twice as long.

use std::{fs, time::Duration};

/// The smallest share of the CPU that a limit is scaled by, so that no limit grows beyond four times
/// its size.
const LEAST_SHARE: f64 = 0.25;
/// USER_HZ, in which `/proc` counts: the same on every architecture that the tests run on.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU times at one moment, in seconds.
pub struct CpuTimes {
    /// Of all processes.
    all: f64,
    /// Of the agent.
    agent: f64,
    /// Processors.
    count: f64,
}

impl CpuTimes {
    /// The times until now.
    pub fn read(agent: u32) -> Self {
        let text = fs::read_to_string("/proc/stat").unwrap_or_default();
        let mut lines = text.lines();
        let numbers: Vec<f64> = lines.next().into_iter().flat_map(numbers).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal
        let idle: f64 = numbers.iter().skip(3).take(2).sum();
        let all = numbers.iter().take(8).sum::<f64>() - idle;
        let count = lines.filter(|line| line.starts_with("cpu")).count();
        let stat = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
        // After the name, which may hold anything, utime and stime are the 12th and 13th.
        let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let agent: f64 = numbers_of(after_name).skip(10).take(2).sum();
        Self {
            all: all / TICKS_PER_SECOND,
            agent: agent / TICKS_PER_SECOND,
            count: f64::from(u32::try_from(count).unwrap_or(1)),
        }
    }

    /// The limit for something that took `elapsed` since these times were read, when `limit` holds
    /// on a machine that the agent has for itself.
    pub fn allowed(&self, limit: Duration, elapsed: Duration, agent: u32) -> Duration {
        let now = Self::read(agent);
        let others = (now.all - self.all) - (now.agent - self.agent);
        let share = 1.0 - others / (self.count * elapsed.as_secs_f64());
        limit.div_f64(share.clamp(LEAST_SHARE, 1.0))
    }
}

fn numbers(line: &str) -> impl Iterator<Item = f64> + '_ {
    numbers_of(line.split_once(' ').map_or("", |(_, rest)| rest))
}

fn numbers_of(text: &str) -> impl Iterator<Item = f64> + '_ {
    text.split_whitespace().map(|word| word.parse().unwrap_or_default())
}
