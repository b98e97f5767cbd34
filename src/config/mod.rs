//! Configuration: files, drop-ins and flags in; one validated [`Config`] out.
//!
//! Precedence, lowest first: defaults, `--config`, the `*.conf` files of `--config-dir` in lexical
//! order, command-line flags. `kind: KubeletConfiguration` is read as the kubelet reads it; what is
//! nodelet's own stands in a second document, `kind: NodeletConfiguration`.
//!
//! ```text
//! files ── parse, walk(fields) ──► tree, each part with its place ─┐
//! flags ── their field's type ──────────────────────────────────────┴─► build ──► Config
//! ```
//!
//! Owns the table of every field and flag, which decoding, `--help` and docs/configuration.md
//! share. Of the environment, it reads what configures the agent. It decides nothing about pods, and
//! touches nothing on the machine.

mod admission;
mod assemble;
mod build;
mod cluster;
mod container_logs;
mod credential_providers;
mod effective;
mod eviction;
mod fields;
mod files;
mod flags;
mod guards;
mod host;
mod image_gc;
mod names;
mod read;
mod server;
mod settings;
mod shutdown;
mod tree;
mod unset;

pub use assemble::{ConfigError, GivenFlag, Loaded, parse_and_validate};
pub use credential_providers::PROVIDER_KIND;
pub use effective::given_flags;
pub use files::{credential_providers, load, load_with, read_text};
pub use flags::{Effect, Flag, Takes, flag, flags};
pub use host::{Environment, HostFacts, KernelSetting};
pub use settings::{
    Authorization, CgroupConfig, ClusterConfig, Config, CriConfig, DnsConfig, Endpoint, Enforce,
    HealthConfig, ImageGcConfig, ImagesConfig, LogFormat, LoggingConfig, NodeConfig, NodeTaint,
    PathsConfig, PidsLimit, PodsConfig, ProcessConfig, Rate, Reserved, ServerConfig, SourceConfig,
    SwapBehavior,
};
pub use tree::Mistake;

#[cfg(test)]
mod docs_tests;
#[cfg(test)]
mod tests;
