//! The command line: the definitions that `--help`, the manual pages and the completions share, and
//! the dispatch to the commands.

pub mod args;
mod ask;
mod check;
mod forget;
mod logs;
mod run;
mod run_args;
mod session;
mod status;
mod top;

use crate::{
    config::Config,
    model::{KUBELET_VERSION, error_chain, printable_lines},
    serve::ClientError,
};
use args::{
    AttachArgs, CheckArgs, CpArgs, EventsArgs, ExecArgs, ForgetArgs, LogsArgs, PortForwardArgs,
    RestartArgs, RetryArgs, StatusArgs, TopArgs, UsageError,
};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
pub use run_args::RunArgs;
use session::SessionError;
use std::{
    error::Error,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The command failed, or `check` found a problem.
pub const EXIT_FAILURE: u8 = 1;
/// The command line or the configuration is wrong; nothing was changed.
pub const EXIT_USAGE: u8 = 2;
/// No agent answered.
pub const EXIT_NO_AGENT: u8 = 3;

const ABOUT: &str = "Runs Kubernetes pods from manifests in a directory, on containerd.";
const LONG_ABOUT: &str = "\
Runs Kubernetes pods from manifests in a directory, on containerd.

Put a Pod manifest (*.yaml, *.yml, *.json) into /etc/nodelet/static-pods and its containers run. They \
survive crashes of containers and of the agent, invalid edits and reboots. Remove \
the manifest, and the pod is stopped.";
const EXAMPLES: &str = "\
Examples:
  nodelet check web.yaml          check a manifest as the agent would
  nodelet                         run the agent (usually: systemctl start nodelet)
  nodelet status                  what runs, and why a pod does not run
  nodelet status web              one pod in detail, with its events
  nodelet top                     the CPU and memory of pods
  nodelet events -f               what happens, as it happens
  nodelet logs web -f             follow its log
  nodelet exec -it web -- sh      a shell in its first container
  nodelet cp web:/etc/hosts .     copy a file from it
  nodelet restart web             restart its containers
  nodelet run --help              every flag of the agent

Exit codes:
  0  success
  1  the command failed, or check found a problem
  2  the command line or the configuration is wrong; nothing was changed
  3  no agent answered
  nodelet exec ends with the exit code of its command.";

#[derive(Debug, Parser)]
#[command(name = "nodelet", version, about = ABOUT, long_about = LONG_ABOUT, after_help = EXAMPLES)]
#[command(override_usage = "nodelet [run] [OPTIONS]\n       nodelet <COMMAND>")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the agent (the default command)
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Check manifests and configuration files without running anything
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Show pods, manifests and the node, or one pod in detail
    #[command(after_help = STATUS_HELP)]
    Status(StatusArgs),
    /// Show the CPU and memory that the node, its pods and their containers use
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Print what has happened to pods and to the node
    #[command(after_help = EVENTS_HELP)]
    Events(EventsArgs),
    /// Print the log of a pod's container
    Logs(LogsArgs),
    /// Run a command in a container
    #[command(after_help = EXEC_HELP)]
    Exec(ExecArgs),
    /// Connect to the input and output of a container's own process
    #[command(after_help = ATTACH_HELP)]
    Attach(AttachArgs),
    /// Copy files and directories from and to a container
    #[command(after_help = CP_HELP)]
    Cp(CpArgs),
    /// Carry connections to ports of this machine to ports of a pod
    #[command(after_help = FORWARD_HELP)]
    PortForward(PortForwardArgs),
    /// Restart the containers of a pod, or one of them
    #[command(after_help = RESTART_HELP)]
    Restart(RestartArgs),
    /// Try at once what a pod has failed at, without waiting for its back-offs
    #[command(after_help = RETRY_HELP)]
    Retry(RetryArgs),
    /// Drop the last good revision of a manifest that has become invalid: its pod is stopped
    Forget(ForgetArgs),
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write one for each command into a directory
    Man(ManArgs),
}

const RUN_HELP: &str = "\
Flags have the kubelet's names; '_' and '-' in them are equivalent. Flags override the files of \
--config-dir, those override --config, and --config overrides the defaults. Other flags of the \
kubelet are reported and have no effect. docs/configuration.md has every flag and every field.

The agent stops on SIGTERM and SIGINT; the containers keep running. On SIGHUP it reads manifests and \
the credentials of the API server again.";

const CHECK_HELP: &str = "\
No pod is started, and no agent needs to run. Problems are printed as FILE:LINE:COLUMN: field: message, and the \
exit code is then 1.

Examples:
  nodelet check web.yaml                          a manifest, before you put it into place
  nodelet check /etc/nodelet/static-pods          all of them, duplicate names included
  nodelet check /etc/nodelet/config.d/10-my.conf  a configuration file";

const STATUS_HELP: &str = "\
Examples:
  nodelet status                       all pods, manifests with verdicts, the node
  nodelet status web                   one pod: containers, last states, events
  nodelet status -o wide -n default    more columns, one namespace
  nodelet status -w                    the table of pods, and a row again whenever it changes
  nodelet status web -o yaml           the Pod as Kubernetes writes it";

const TOP_HELP: &str = "\
CPU is in thousandths of a core, over the last seconds; memory is the working set, which cannot easily be had back.

Examples:
  nodelet top                     the node and all pods
  nodelet top web --containers    the containers of one pod
  nodelet top --sort-by memory    the largest first";

const EVENTS_HELP: &str = "\
The agent keeps the last 300 events in memory, since its start. An event that repeats is counted, and is printed again \
with --follow.

Examples:
  nodelet events                  what has happened, the newest last
  nodelet events web -f           what happens to one pod, as it happens
  nodelet events -o json          the Events as Kubernetes writes them";

const EXEC_HELP: &str = "\
The exit code is the command's, unless there was no session: then see nodelet --help.

Examples:
  nodelet exec web -- nginx -t                 a command, its output and its exit code
  nodelet exec -it web -c proxy -- sh          a shell in a terminal
  nodelet exec -i db -- psql < dump.sql        standard input, up to its end";

const ATTACH_HELP: &str = "\
What the container wrote before is in nodelet logs.

Examples:
  nodelet attach web              what its first container writes from now on
  nodelet attach -i console       type into it";

const CP_HELP: &str = "\
PATH in a container may be relative to its working directory. The image must contain tar. A local path with \
a colon is written as ./a:b or as an absolute path.

If DST is an existing directory or ends with '/', SRC is copied into it under its own name. \
Otherwise DST is the new name. Links and special files in a container are not copied: a warning names each.

Examples:
  nodelet cp web:/etc/nginx/nginx.conf .      a file from the container
  nodelet cp web:/var/lib/app ./backup        a directory
  nodelet cp site web:/srv/ -c proxy          a directory into another container of the pod
  nodelet cp my.conf shop/web:/etc/app.conf   a file under another name";

const FORWARD_HELP: &str = "\
Goes on until it is stopped (Ctrl-C). The pod's port may listen on its loopback address alone.

Examples:
  nodelet port-forward web 8080:80        http://127.0.0.1:8080 is port 80 of the pod
  nodelet port-forward db 5432 :9187      two ports, the second one on a port that is free";

const RESTART_HELP: &str = "\
Containers stop as when the pod ends: preStop hook, grace period, sidecars last. They start again at \
once in the same sandbox, so the pod keeps its address and its emptyDir volumes, and the restart counts as no \
crash. Init containers do not run again. A container that has ended for good under its restart policy \
is not restarted.

Examples:
  nodelet restart web             all containers of the pod
  nodelet restart web -c proxy    one of them";

const RETRY_HELP: &str = "\
Ends the pod's back-offs: of containers that crash, of image pulls, of its sandbox and of its volumes. The next \
failure begins a new back-off with its first delay. A pod that waits for something else goes on \
waiting, see nodelet status POD.";

#[derive(Debug, Args)]
struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Debug, Args)]
struct ManArgs {
    /// The directory for nodelet.1, nodelet-run.1, ... [default: nodelet.1 to standard output]
    #[arg(value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

/// Executes the command in `args`, which begin with the program's name. `agent` is the future that
/// `run` runs.
#[must_use]
pub fn main<F>(
    args: impl IntoIterator<Item = OsString>,
    agent: impl FnOnce(Config) -> F,
) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    let args = run_args::normalize(args);
    let stands_in = args.first().is_some_and(|name| is_kubelet(name));
    let matches = match command(stands_in).try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    let cli = Cli::from_arg_matches(&matches);
    // The agent runs for months.
    drop(matches);
    match cli {
        Ok(cli) => answer(cli.command, agent),
        Err(error) => usage(&error),
    }
}

/// The default of `--root-dir` for a program that is installed as `kubelet`. kubeadm writes its
/// files there, and `kubeadm reset` empties this directory.
const KUBELET_ROOT_DIR: &str = "/var/lib/kubelet";

/// True when the program is installed as `kubelet`. It then prints its version in the kubelet's
/// words, which kubeadm reads, and keeps its state in the kubelet's directory.
fn is_kubelet(program: &OsStr) -> bool {
    Path::new(program).file_name().is_some_and(|name| name == "kubelet")
}

fn command(stands_in_for_kubelet: bool) -> clap::Command {
    let command = Cli::command();
    match stands_in_for_kubelet {
        true => command
            .display_name("Kubernetes")
            .version(KUBELET_VERSION)
            .mut_subcommand("run", with_root_dir_of_kubelet),
        false => command,
    }
}

/// The flag's help names both defaults.
fn with_root_dir_of_kubelet(run: clap::Command) -> clap::Command {
    run.mut_arg("root-dir", |arg| arg.default_value(KUBELET_ROOT_DIR).hide_default_value(true))
}

fn answer<F>(command: Command, agent: impl FnOnce(Config) -> F) -> ExitCode
where
    F: Future<Output = anyhow::Result<()>>,
{
    match command {
        Command::Run(args) => run::run(args, agent),
        Command::Check(args) => finish(check::run(&args)),
        Command::Version => finish(print(&format!("nodelet {}\n", env!("CARGO_PKG_VERSION")))),
        Command::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "nodelet", &mut script);
            finish(print(&String::from_utf8_lossy(&script)))
        }
        Command::Man(args) => finish(manual(args.dir.as_deref())),
        Command::Status(args) => wait_for(status::run(args)),
        Command::Top(args) => wait_for(top::run(args)),
        Command::Events(args) => wait_for(status::events(args)),
        Command::Logs(args) => wait_for(logs::run(args)),
        Command::Exec(args) => wait_for(session::exec(args)),
        Command::Attach(args) => wait_for(session::attach(args)),
        Command::Cp(args) => wait_for(session::cp(args)),
        Command::PortForward(args) => wait_for(session::port_forward(args)),
        Command::Restart(args) => wait_for(ask::restart(args)),
        Command::Retry(args) => wait_for(ask::retry(args)),
        Command::Forget(args) => wait_for(forget::run(args)),
    }
}

/// Prints `--help`, `--version` and usage errors in clap's words.
fn usage(error: &clap::Error) -> ExitCode {
    let shown = error.print();
    if error.use_stderr() {
        return ExitCode::from(EXIT_USAGE);
    }
    finish(shown.map(|()| ExitCode::SUCCESS))
}

/// Runs a command that asks the agent, on a runtime of its own.
fn wait_for<E: Error + 'static>(command: impl Future<Output = Result<ExitCode, E>>) -> ExitCode {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => finish(runtime.block_on(command)),
        Err(error) => fail(&error),
    }
}

fn finish<E: Error + 'static>(result: Result<ExitCode, E>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Prints an error with all its causes.
fn fail(error: &(dyn Error + 'static)) -> ExitCode {
    if broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    complain(&format!("nodelet: {}", error_chain(error)));
    ExitCode::from(if is_usage(error) { EXIT_USAGE } else { EXIT_FAILURE })
}

/// Whether the command line is what is wrong.
fn is_usage(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if inner.is::<UsageError>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// Whether the reader of our output went away (`nodelet status | head -1`), which is no failure. An agent or a
/// session that went away is one.
fn broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        let session = inner.downcast_ref();
        let is_session = matches!(session, Some(SessionError::Broke(_) | SessionError::Copy(_)));
        if is_session || inner.is::<ClientError>() {
            return false;
        }
        if inner.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// Writes a line to standard error. A closed standard error is ignored.
fn complain(text: &str) {
    let written = writeln!(io::stderr().lock(), "{}", printable_lines(text));
    debug_assert!(written.is_ok() || cfg!(not(test)));
}

fn print(text: &str) -> io::Result<ExitCode> {
    show(text)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes to standard output, with escape sequences made visible: much of what is printed comes
/// from manifests, from containers and from the runtime. Only the log of a container is printed as
/// it is.
fn show(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(printable_lines(text).as_bytes())?;
    out.flush()
}

/// The manual: one page for the program, one for each command.
fn manual(dir: Option<&Path>) -> io::Result<ExitCode> {
    match dir {
        Some(dir) => {
            fs::create_dir_all(dir)?;
            clap_mangen::generate_to(Cli::command(), dir)?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            print(&String::from_utf8_lossy(&page))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn only_our_own_reader_may_go_away() {
        let error = || io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(broken_pipe(&SessionError::Terminal(error())));
        assert!(!broken_pipe(&SessionError::Broke(error())));
        let path = PathBuf::from("file");
        let copy = session::CopyError::Write { path, source: error() };
        assert!(!broken_pipe(&SessionError::Copy(copy)));
    }

    #[test]
    fn installed_as_kubelet_it_tells_the_release_that_it_stands_for() {
        let told = |program: &str| {
            let command = command(is_kubelet(OsStr::new(program)));
            command.try_get_matches_from([program, "--version"]).unwrap_err().to_string()
        };
        assert_eq!(told("/usr/bin/kubelet"), format!("Kubernetes {KUBELET_VERSION}\n"));
        let own = format!("nodelet {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((told("nodelet"), told("/opt/kubelet/nodelet")), (own.clone(), own));
    }

    #[test]
    fn installed_as_kubelet_its_root_directory_is_that_of_kubeadm() {
        let root_dir = |args: &[&str]| {
            let args = run_args::normalize(args.iter().map(OsString::from));
            let matches = command(is_kubelet(&args[0])).try_get_matches_from(args).unwrap();
            let Command::Run(run) = Cli::from_arg_matches(&matches).unwrap().command else {
                panic!("another command than run");
            };
            config::load(&run.flags, &config::HostFacts::default()).unwrap().config.paths.root_dir
        };
        assert_eq!(root_dir(&["/usr/bin/kubelet"]), Path::new("/var/lib/kubelet"));
        assert_eq!(root_dir(&["kubelet", "--root-dir=/data"]), Path::new("/data"));
        assert_eq!(root_dir(&["/usr/bin/nodelet", "run"]), Path::new("/var/lib/nodelet"));
    }
}
