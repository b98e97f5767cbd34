//! What a container of the fake runtime does: the small part of `sh -c` that the scenarios use.
//!
//! `sleep N`, `sleep N & wait`, `exit N`, `true`, `false`, `echo TEXT`, `echo TEXT > PATH`,
//! `cat PATH` and `trap 'exit N' TERM`, joined by `;`. As the first process of a container ignores
//! SIGTERM without a trap, and a shell that waits for a foreground command runs its trap after it,
//! so does this.
//! Anything else exits with 127 and says so in the container's log: a scenario that needs more runs
//! on the real runtime only.

use nodelet::cri::v1;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::sync::watch;

/// One statement.
#[derive(Clone, Debug, PartialEq)]
enum Statement {
    Sleep { time: Duration, interruptible: bool },
    Exit(i32),
    Echo { text: String, file: Option<String> },
    Cat(String),
    TrapTerm(i32),
    Nothing,
}

/// What a container's command amounts to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Script(Vec<Statement>);

/// Where a script's output goes.
pub(super) trait Output {
    /// A line on stdout.
    fn line(&self, text: &str);
    /// The mounts through which the container reaches files.
    fn mounts(&self) -> &[v1::Mount];
    /// A file in the container is replaced.
    fn write(&self, path: &str, text: &str) {
        for file in on_host(self.mounts(), path) {
            let _written = fs::write(file, format!("{text}\n"));
        }
    }
    /// What a file in the container has.
    fn read(&self, path: &str) -> Option<String> {
        on_host(self.mounts(), path).find_map(|file| fs::read_to_string(file).ok())
    }
}

impl Script {
    /// Reads a command line.
    pub(super) fn parse(argv: &[String]) -> Result<Self, String> {
        let words: Vec<&str> = argv.iter().map(String::as_str).collect();
        let text = match words.as_slice() {
            [] | ["sh"] => "true".to_owned(),
            ["sh" | "/bin/sh", "-c", script] => (*script).to_owned(),
            other => other.join(" "),
        };
        let statements = text.split([';', '\n']).map(str::trim).filter(|s| !s.is_empty());
        statements.map(statement).collect::<Result<_, _>>().map(Self)
    }

    /// Runs to the end; gives the exit code. SIGTERM arrives when `term` becomes true.
    pub(super) async fn run(self, output: &impl Output, mut term: watch::Receiver<bool>) -> i32 {
        let mut on_term = None;
        for statement in self.0 {
            match statement {
                Statement::Exit(code) => return code,
                Statement::TrapTerm(code) => on_term = Some(code),
                Statement::Echo { text, file: None } => output.line(&text),
                Statement::Echo { text, file: Some(path) } => output.write(&path, &text),
                Statement::Cat(path) => match output.read(&path) {
                    Some(text) => output.line(text.trim_end()),
                    None => {
                        output
                            .line(&format!("cat: can't open '{path}': No such file or directory"));
                        return 1;
                    }
                },
                Statement::Nothing => {}
                Statement::Sleep { time, interruptible } if interruptible && on_term.is_some() => {
                    // Both arms may be dropped: a timer and a watch lose nothing.
                    tokio::select! {
                        () = tokio::time::sleep(time) => {}
                        _ = term.wait_for(|sent| *sent) => {}
                    }
                }
                Statement::Sleep { time, .. } => tokio::time::sleep(time).await,
            }
            if let Some(code) = on_term
                && *term.borrow()
            {
                return code;
            }
        }
        0
    }
}

/// The files of the host that a path in a container may mean.
fn on_host<'a>(mounts: &'a [v1::Mount], path: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
    mounts.iter().filter_map(move |mount| {
        let inside = Path::new(path).strip_prefix(&mount.container_path).ok()?;
        let host = Path::new(&mount.host_path);
        Some(if inside.as_os_str().is_empty() { host.to_owned() } else { host.join(inside) })
    })
}

fn statement(text: &str) -> Result<Statement, String> {
    let unknown = || format!("the fake runtime does not know the command {text:?}");
    if let Some(rest) = text.strip_prefix("trap ") {
        let code = rest.trim().strip_prefix("'exit ").and_then(|r| r.strip_suffix("' TERM"));
        return Ok(Statement::TrapTerm(code.and_then(|c| c.parse().ok()).ok_or_else(unknown)?));
    }
    if let Some(rest) = text.strip_prefix("echo ") {
        let (text, file) = rest.split_once('>').map_or((rest, None), |(t, f)| (t, Some(f.trim())));
        return Ok(Statement::Echo { text: text.trim().to_owned(), file: file.map(str::to_owned) });
    }
    let (command, background) = match text.strip_suffix("& wait") {
        Some(command) => (command.trim(), true),
        None => (text, false),
    };
    Ok(match command.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["true"] => Statement::Nothing,
        ["false"] => Statement::Exit(1),
        ["cat", path] => Statement::Cat((*path).to_owned()),
        ["exit", code] => Statement::Exit(code.parse().map_err(|_| unknown())?),
        ["sleep", seconds] => {
            let seconds: f64 = seconds.parse().map_err(|_| unknown())?;
            let time = Duration::try_from_secs_f64(seconds).map_err(|_| unknown())?;
            Statement::Sleep { time, interruptible: background }
        }
        _ => return Err(unknown()),
    })
}
