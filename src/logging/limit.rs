//! Bounds how often one message is logged.
//!
//! Every place in the source that logs may write 2,000 lines in 10 s. That is more than 110 pods
//! need that all start at once, and it bounds a loop that logs. Further lines of that place are
//! left out until the 10 s are over: the first of them is replaced by a line that says so, and
//! their number is logged with the next line of any place after that time.

use crate::clock;
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tracing::{Event, Metadata, subscriber::Interest};
use tracing_subscriber::{
    filter::LevelFilter,
    layer::{Context, Filter},
};

/// Lines of one place in the source in one [`WINDOW`].
const LINES: u64 = 2_000;
const WINDOW: Duration = Duration::from_secs(10);

/// Logs a message about the log itself, past the limit.
pub(super) type Say = Box<dyn Fn(&str) + Send + Sync>;

/// The limit as a filter. Clones share their counts.
#[derive(Clone)]
pub(super) struct Limit {
    counts: Arc<Mutex<Counts>>,
    say: Arc<Say>,
}

impl Limit {
    pub(super) fn new(say: Say) -> Self {
        Self { counts: Arc::default(), say: Arc::new(say) }
    }

    /// Reports what was left out until now.
    pub(super) fn finish(&self) {
        let left_out = self.lock().take_left_out();
        self.report(left_out);
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, left_out: Vec<(CallSite, u64)>) {
        for (place, lines) in left_out {
            (self.say)(&format!("{lines} log lines of {place} were left out"));
        }
    }
}

impl<S> Filter<S> for Limit {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, _metadata: &'static Metadata<'static>) -> Interest {
        // With `always`, `event_enabled` is called outside of a filter pass, and a debug build of
        // tracing_subscriber panics when it says no.
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        let place = CallSite { file: metadata.file(), line: metadata.line() };
        let counted = self.lock().count(place, clock::now().boot);
        self.report(counted.left_out);
        if counted.verdict == Verdict::FirstLeftOut {
            (self.say)(&format!(
                "{place} has logged {LINES} lines within {} s: more are counted and left out",
                WINDOW.as_secs()
            ));
        }
        counted.verdict == Verdict::Write
    }
}

/// A place in the source that logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CallSite {
    file: Option<&'static str>,
    line: Option<u32>,
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.unwrap_or("?"), self.line.unwrap_or(0))
    }
}

/// How many lines each place has logged in this window.
#[derive(Debug, Default)]
struct Counts {
    /// Boot time.
    window_ends: Duration,
    lines: HashMap<CallSite, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Write,
    FirstLeftOut,
    LeftOut,
}

#[derive(Debug, PartialEq, Eq)]
struct Counted {
    verdict: Verdict,
    /// How many lines of which places were left out in a window that is over.
    left_out: Vec<(CallSite, u64)>,
}

impl Counts {
    fn count(&mut self, place: CallSite, now: Duration) -> Counted {
        let mut left_out = Vec::new();
        if now >= self.window_ends {
            left_out = self.take_left_out();
            self.window_ends = now + WINDOW;
        }
        let lines = self.lines.entry(place).or_default();
        *lines += 1;
        let verdict = match *lines {
            ..=LINES => Verdict::Write,
            lines if lines == LINES + 1 => Verdict::FirstLeftOut,
            _ => Verdict::LeftOut,
        };
        Counted { verdict, left_out }
    }

    fn take_left_out(&mut self) -> Vec<(CallSite, u64)> {
        let over =
            |(place, lines): (CallSite, u64)| (lines > LINES).then(|| (place, lines - LINES));
        self.lines.drain().filter_map(over).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::{Layer, layer::SubscriberExt, registry::Registry};

    const fn place(line: u32) -> CallSite {
        CallSite { file: Some("src/x.rs"), line: Some(line) }
    }

    #[test]
    fn one_place_is_limited_and_others_are_not() {
        let mut counts = Counts::default();
        let at = Duration::from_secs(100);
        for _ in 0..LINES {
            assert_eq!(counts.count(place(1), at).verdict, Verdict::Write);
        }
        assert_eq!(counts.count(place(1), at).verdict, Verdict::FirstLeftOut);
        assert_eq!(counts.count(place(1), at).verdict, Verdict::LeftOut);
        assert_eq!(counts.count(place(2), at).verdict, Verdict::Write);
        let counted = counts.count(place(2), at + WINDOW);
        assert_eq!(counted, Counted { verdict: Verdict::Write, left_out: vec![(place(1), 2)] });
        assert_eq!(counts.count(place(1), at + WINDOW).verdict, Verdict::Write);
    }

    #[test]
    fn a_flood_of_one_message_is_left_out_and_counted() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&said);
        let limit = Limit::new(Box::new(move |text| told.lock().unwrap().push(text.to_owned())));
        let written = Arc::new(Mutex::new(0));
        let layer = Count(Arc::clone(&written)).with_filter(limit.clone());
        tracing::subscriber::with_default(Registry::default().with(layer), || {
            for number in 0..LINES + 5 {
                tracing::info!("the same {number}");
            }
            tracing::info!("another");
        });
        limit.finish();
        assert_eq!(*written.lock().unwrap(), LINES + 1);
        let said = said.lock().unwrap();
        assert!(said[0].contains("limit.rs:") && said[0].contains("left out"), "{said:?}");
        assert!(said[1].starts_with("5 log lines of "), "{said:?}");
    }

    struct Count(Arc<Mutex<u64>>);

    impl<S: tracing::Subscriber> Layer<S> for Count {
        fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
            *self.0.lock().unwrap() += 1;
        }
    }
}
