//! Where the agent's log lines go and how they look: to standard error, for people on a terminal,
//! for the journal under systemd, for other files, or as JSON.
//!
//! | | time | level |
//! |---|---|---|
//! | terminal | `15:04:05` | a word, coloured |
//! | journal | none: it has its own | the entry's priority ([`journal`]) |
//! | elsewhere | `2026-01-31T15:04:05.000Z` | a word |

//!
//! Logging never waits for a reader: [`queue`] and [`journal`] count what they lose and report it.
//! [`limit`] bounds how often one message is logged.

mod journal;
mod limit;
mod queue;

use crate::{
    clock,
    config::{Environment, LogFormat, LoggingConfig},
    model::printable,
};
use jiff::tz::TimeZone;
use journal::{Journal, JournalLayer};
use limit::{Limit, Say};
use queue::Queue;
use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt,
    io::{self, IsTerminal},
    panic,
    sync::Arc,
    time::Duration,
};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    Layer,
    filter::{FilterExt, LevelFilter, Targets},
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{DefaultFields, Format, Writer},
        time::FormatTime,
    },
    layer::SubscriberExt,
    registry::{LookupSpan, Registry},
};

/// How long the end of the process waits for its last lines to be written.
const PATIENCE_AT_END: Duration = Duration::from_secs(1);

pub struct Log {
    queue: Queue,
    limit: Limit,
}

impl Log {
    /// Waits until all lines are written, at most a second. Without it the last lines of the
    /// process may be missing.
    pub fn finish(&self) {
        self.limit.finish();
        // If it takes longer, the log has no reader.
        _ = self.queue.flush(PATIENCE_AT_END);
    }
}

/// Sends every log line of the process to standard error from now on, panics included.
///
/// # Errors
/// When that was done before, or the journal can't be written to.
pub fn init(config: LoggingConfig, environment: &Environment) -> io::Result<Log> {
    let lines = Lines { look: LineStyle::of_stderr(environment), zone: TimeZone::system() };
    let (layer, queue, say): (Box<dyn Layer<Registry> + Send + Sync>, Queue, Say) =
        match config.format {
            LogFormat::Json => {
                let queue = Queue::to_stderr(Box::new(json_line));
                let layer = fmt_layer(&queue).json().flatten_event(true).with_timer(Utc);
                (Box::new(layer), queue.clone(), Box::new(move |text| queue.say(text)))
            }
            LogFormat::Text if is_journal(environment) => {
                let queue = Queue::to_stderr(Box::new(journal::stream_line));
                let journal = Arc::new(Journal::new(queue.clone())?);
                let layer = JournalLayer(Arc::clone(&journal));
                (Box::new(layer), queue, Box::new(move |text| journal.warn(text)))
            }
            LogFormat::Text => {
                let prefixed = lines.clone();
                let format = move |text: &str| format!("{}{text}\n", prefixed.prefix(Level::WARN));
                let queue = Queue::to_stderr(Box::new(format));
                // The colours of `Lines` are its own: tracing-subscriber's need a feature.
                let layer = fmt_layer(&queue)
                    .with_ansi(false)
                    .fmt_fields(DefaultFields::new())
                    .event_format(lines);
                (Box::new(layer), queue.clone(), Box::new(move |text| queue.say(text)))
            }
        };
    let limit = Limit::new(say);
    let filter = levels(config.verbosity).and(limit.clone());
    let subscriber = Registry::default().with(layer.with_filter(filter));
    tracing::subscriber::set_global_default(subscriber).map_err(io::Error::other)?;
    log_panics(queue.clone());
    Ok(Log { queue, limit })
}

fn fmt_layer(
    queue: &Queue,
) -> tracing_subscriber::fmt::Layer<Registry, DefaultFields, Format, impl Fn() -> Queue + use<>> {
    let queue = queue.clone();
    tracing_subscriber::fmt::layer().with_writer(move || queue.clone())
}

/// Logs panics as other lines. Rust's own message would wait for standard error to take it.
fn log_panics(queue: Queue) {
    panic::set_hook(Box::new(move |panic| {
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            tracing::error!("{panic}\n{backtrace}");
        } else {
            tracing::error!("{panic}");
        }
        // The process may end now.
        _ = queue.flush(PATIENCE_AT_END);
    }));
}

/// A message about the log itself, as the other lines in JSON.
fn json_line(message: &str) -> String {
    let timestamp = format!("{:.3}", clock::now().wall);
    let target = env!("CARGO_CRATE_NAME");
    let line = serde_json::json!({
        "timestamp": timestamp, "level": "WARN", "message": message, "target": target,
    });
    format!("{line}\n")
}

/// Which lines are written, as klog's verbosity.
fn levels(verbosity: u8) -> Targets {
    let (own, others) = match verbosity {
        0 | 1 => (LevelFilter::INFO, LevelFilter::WARN),
        2 | 3 => (LevelFilter::DEBUG, LevelFilter::WARN),
        // The lines of level TRACE are not compiled in (`max_level_debug` in Cargo.toml).
        4.. => (LevelFilter::DEBUG, LevelFilter::DEBUG),
    };
    Targets::new().with_target(env!("CARGO_CRATE_NAME"), own).with_default(others)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineStyle {
    /// Terminal with colours.
    Colours,
    /// Terminal without.
    Plain,
    /// A file, a pipe.
    Dated,
}

impl LineStyle {
    fn of_stderr(environment: &Environment) -> Self {
        match (io::stderr().is_terminal(), environment.no_color) {
            (true, false) => Self::Colours,
            (true, true) => Self::Plain,
            (false, _) => Self::Dated,
        }
    }
}

/// Whether standard error is the stream that the journal reads, and not one inherited from a
/// service and redirected since.
fn is_journal(environment: &Environment) -> bool {
    let Some(named) = environment.journal_stream else { return false };
    nix::sys::stat::fstat(io::stderr()).is_ok_and(|own| (own.st_dev, own.st_ino) == named)
}

/// One event, one line.
#[derive(Clone)]
struct Lines {
    look: LineStyle,
    zone: TimeZone,
}

impl Lines {
    /// Time and level.
    fn prefix(&self, level: Level) -> String {
        let wall = clock::now().wall;
        let time = || wall.to_zoned(self.zone.clone()).strftime("%H:%M:%S").to_string();
        match self.look {
            LineStyle::Colours => format!("\x1b[2m{}\x1b[0m {} ", time(), coloured(level)),
            LineStyle::Plain => format!("{} {level:<5} ", time()),
            LineStyle::Dated => format!("{wall:.3} {level:<5} "),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = String::new();
        context.format_fields(Writer::new(&mut fields), event)?;
        let prefix = self.prefix(*event.metadata().level());
        // A field may be text from outside: it must not begin a line of its own, nor drive a
        // terminal.
        writeln!(writer, "{prefix}{}{}", origin(event), printable(&fields))
    }
}

/// Which library an event is from, in front of its text; nothing for our own.
fn origin(event: &Event<'_>) -> String {
    let origin = event.metadata().target().split("::").next().unwrap_or_default();
    if origin == env!("CARGO_CRATE_NAME") { String::new() } else { format!("{origin}: ") }
}

/// syslog's number.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

fn coloured(level: Level) -> &'static str {
    match level {
        Level::ERROR => "\x1b[31mERROR\x1b[0m",
        Level::WARN => "\x1b[33mWARN \x1b[0m",
        Level::INFO => "\x1b[32mINFO \x1b[0m",
        Level::DEBUG => "\x1b[34mDEBUG\x1b[0m",
        Level::TRACE => "\x1b[35mTRACE\x1b[0m",
    }
}

/// RFC 3339 in UTC, for JSON.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{:.3}", clock::now().wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::fmt::MakeWriter;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Sink {
        type Writer = Self;
        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    fn logged(look: LineStyle, verbosity: u8, log: impl FnOnce()) -> String {
        let sink = Sink::default();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(sink.clone())
            .with_ansi(false)
            .event_format(Lines { look, zone: TimeZone::UTC })
            .with_filter(levels(verbosity));
        tracing::subscriber::with_default(Registry::default().with(layer), log);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn lines_have_their_level_their_origin_and_their_fields() {
        let text = logged(LineStyle::Dated, 2, || {
            tracing::error!(pod = "default/web", "cannot pull");
            tracing::warn!("one\ntwo");
            tracing::info!("up");
            tracing::debug!("looked");
            tracing::info!(target: "tonic::transport", "chatter");
            tracing::warn!(target: "tonic::transport", "lost");
        });
        let without_time: Vec<&str> =
            text.lines().map(|line| line.split_once("Z ").map_or(line, |(_, rest)| rest)).collect();
        assert_eq!(
            without_time,
            [
                "ERROR cannot pull pod=\"default/web\"",
                "WARN  one\\ntwo",
                "INFO  up",
                "DEBUG looked",
                "WARN  tonic: lost"
            ]
        );
    }

    #[test]
    fn text_from_outside_cannot_forge_a_line_or_drive_a_terminal() {
        let text = logged(LineStyle::Dated, 0, || {
            let name = "a\n2026-01-31T15:04:05.000Z ERROR forged";
            tracing::warn!(location = %name, pod = name, "\x1b[2Jrejected: {name}\r");
        });
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().contains(char::is_control), "{text:?}");
    }

    #[test]
    fn terminal_lines_have_a_short_time_and_optional_colours() {
        let plain = logged(LineStyle::Plain, 0, || tracing::info!("up"));
        assert_eq!(plain.len(), "15:04:05 INFO  up\n".len(), "{plain:?}");
        assert!(plain.ends_with(" INFO  up\n") && plain.as_bytes()[2] == b':', "{plain:?}");
        let coloured = logged(LineStyle::Colours, 0, || tracing::info!("up"));
        assert!(coloured.contains("\x1b[32mINFO \x1b[0m up"), "{coloured:?}");
        let dated = logged(LineStyle::Dated, 0, || tracing::info!("up"));
        assert!(dated.contains("Z INFO  up"), "{dated:?}");
    }

    #[test]
    fn verbosity_chooses_levels() {
        let all = || {
            tracing::debug!("own-debug");
            tracing::debug!(target: "h2", "h2-debug");
        };
        for (verbosity, expected) in [
            (0, &[][..]),
            (1, &[]),
            (2, &["own-debug"]),
            (4, &["own-debug", "h2-debug"]),
            (9, &["own-debug", "h2-debug"]),
        ] {
            let text = logged(LineStyle::Plain, verbosity, all);
            assert_eq!(text.lines().count(), expected.len(), "{verbosity}: {text}");
            assert!(expected.iter().all(|line| text.contains(line)), "{verbosity}: {text}");
        }
    }
}
