//! Configuration: files, drop-ins and flags in; one validated [`Config`] out.
//!
//! Precedence, lowest first: defaults, `--config`, the `*.conf` files of `--config-dir` in lexical
//! order, command-line flags. `kind: KubeletConfiguration` is read as the kubelet reads it; what is
//! nodelet's own stands in a second document, `kind: NodeletConfiguration`.
//!
//! Owns the table of every field and flag, which decoding, `--help` and docs/configuration.md share.
//! This is the only module that reads the environment. It decides nothing about pods, and touches
//! nothing on the machine.

mod settings;

pub use settings::{
    CgroupConfig, CgroupDriver, Config, CriConfig, DnsConfig, Endpoint, Enforce, EventsConfig,
    HealthConfig, ImagesConfig, LogFormat, LoggingConfig, NodeConfig, PathsConfig, PidsLimit,
    PodsConfig, ProcessConfig, Reserved, SourceConfig,
};
