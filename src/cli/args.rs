//! The arguments of the subcommands that ask a running agent, and of `check`. The flags of `run`
//! come from the table in `config`.

use clap::{Args, ValueEnum, ValueHint};
use std::{ffi::OsString, path::PathBuf};

/// How a running agent is found.
#[derive(Clone, Debug, Args)]
pub struct AgentArgs {
    /// Directory with the agent's socket (its own --run-dir)
    #[arg(long, value_name = "DIR", default_value = "/run/nodelet", value_hint = ValueHint::DirPath)]
    pub run_dir: PathBuf,
}

impl AgentArgs {
    /// Path of the socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.run_dir.join("nodelet.sock")
    }
}

/// Which pod is meant.
#[derive(Clone, Debug, Args)]
pub struct NamespaceArgs {
    /// Namespace of the pod, if POD does not contain it [default: the only namespace with such a
    /// pod]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table for people
    #[default]
    Table,
    /// The table with more columns
    Wide,
    /// Kubernetes objects as JSON
    Json,
    /// Kubernetes objects as YAML
    Yaml,
}

/// `nodelet status [POD]`
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// Show this pod in detail: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Output,
    /// Print the table of pods, and a row again whenever it changes
    #[arg(short, long)]
    pub watch: bool,
    /// Print the status page, an HTML document for a browser
    #[arg(long, conflicts_with_all = ["pod", "namespace", "output", "watch"])]
    pub html: bool,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `--sort-by`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortBy {
    /// The pods with the most CPU time first
    Cpu,
    /// The pods with the most memory first
    Memory,
}

/// `nodelet top [POD]`
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Only this pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Which pod is meant, or whose pods are listed.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// A row for each container
    #[arg(long)]
    pub containers: bool,
    /// The order of pods [default: by name]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub sort_by: Option<SortBy>,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `-o` of `nodelet events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EventOutput {
    /// A table for people
    #[default]
    Table,
    /// Kubernetes objects as JSON; with --follow one object a line
    Json,
}

/// `nodelet events [POD]`
#[derive(Clone, Debug, Args)]
pub struct EventsArgs {
    /// Only the events of this pod: NAME or NAMESPACE/NAME, with or without the node's name at the
    /// end
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// Which pod is meant; without POD, whose events.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Keep printing events as they happen
    #[arg(short, long)]
    pub follow: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: EventOutput,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet logs POD`
#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct LogsArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The container [default: the pod's first; without an agent, needed where there are several]
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// Keep printing new lines as they are written
    #[arg(short, long)]
    pub follow: bool,
    /// The container's previous instance
    #[arg(short, long)]
    pub previous: bool,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u64>,
    /// Only lines that are at most this old (5s, 2m, 3h)
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub since: Option<std::time::Duration>,
    /// Begin each line with its time
    #[arg(long)]
    pub timestamps: bool,
    /// Directory of the containers' logs [default: the agent's; /var/log/pods when no agent
    /// answers]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pod_logs_dir: Option<PathBuf>,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet exec POD -- COMMAND`
#[derive(Clone, Debug, Args)]
pub struct ExecArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The container [default: the pod's first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// Pass standard input on
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet attach POD`
#[derive(Clone, Debug, Args)]
pub struct AttachArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The container [default: the pod's first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// Pass standard input on; the container needs `stdin: true`
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet cp SRC DST`
#[derive(Clone, Debug, Args)]
pub struct CpArgs {
    /// What is copied: POD:PATH, NAMESPACE/POD:PATH or a local path
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    pub source: OsString,
    /// Where it is copied to: a local path if SRC is in a pod, and in a pod if SRC is a local path
    #[arg(value_name = "DST", value_hint = ValueHint::AnyPath)]
    pub destination: OsString,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// The container [default: the pod's first]
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet port-forward POD PORT...`
#[derive(Clone, Debug, Args)]
pub struct PortForwardArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// PORT, LOCAL:PORT, or :PORT for a local port that is free
    #[arg(value_name = "[LOCAL:]PORT", required = true)]
    pub ports: Vec<String>,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Address of this machine to listen on
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    pub address: std::net::IpAddr,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet forget POD`
#[derive(Clone, Debug, Args)]
pub struct ForgetArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet restart POD`
#[derive(Clone, Debug, Args)]
pub struct RestartArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Only this container [default: all regular containers and sidecars]
    #[arg(short, long, value_name = "CONTAINER")]
    pub container: Option<String>,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet retry POD`
#[derive(Clone, Debug, Args)]
pub struct RetryArgs {
    /// The pod: NAME or NAMESPACE/NAME, with or without the node's name at the end
    #[arg(value_name = "POD")]
    pub pod: String,
    /// Which pod is meant.
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// How the agent is found.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// `nodelet check PATH...`
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Manifests, directories of manifests, and configuration files
    #[arg(value_name = "PATH", required = true, value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// The agent's configuration file, which affects which manifests are valid
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// Directory of drop-in files, with or without --config
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub config_dir: Option<PathBuf>,
    /// The node's name, which is appended to pod names [default: the agent's choice]
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,
    /// Configuration of credential provider plugins, or a directory of such files
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub image_credential_provider_config: Option<PathBuf>,
    /// Directory in which those plugins must be
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
}

/// What is wrong with arguments that clap can't check.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UsageError {
    #[error("{0:?} is not the name of a pod: expected NAME or NAMESPACE/NAME")]
    NotAPod(String),
    #[error("{pod:?} has the namespace {in_name:?}, but --namespace is {in_flag:?}")]
    TwoNamespaces { pod: String, in_name: String, in_flag: String },
    #[error("{0:?} is no port: expected PORT, LOCAL:PORT or :PORT")]
    NotAPort(String),
    #[error("one of SRC and DST must be in a pod (POD:PATH), and the other one local")]
    OneInPod,
    #[error("{0:?} has no path after the colon; write ./{0} for a local file")]
    NoPath(String),
    #[error("{0:?} is not UTF-8")]
    NotUtf8(String),
}

fn duration(text: &str) -> Result<std::time::Duration, NotADuration> {
    crate::model::parse_duration(text).ok_or(NotADuration)
}

/// What was given is no duration.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("not a duration such as 30s, 5m or 1h30m")]
struct NotADuration;
