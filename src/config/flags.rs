//! The flags of `run`: nodelet's own, those that set a field of the configuration (the field's
//! row names its flag), and the rest of the kubelet's with what to say about each.

use super::fields::{DIRECTORIES, IMAGE_PULLS, KUBELET, NODE, NODELET, THE_AGENT_ITSELF, leaves};
use crate::document::{Field, Setting, Support, Type};
use std::sync::LazyLock;

/// A flag of `run`.
#[derive(Debug)]
pub struct Flag {
    /// Without the dashes.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
}

/// What a flag does.
#[derive(Debug)]
pub enum Effect {
    /// Sets a field of the configuration.
    Sets(Target),
    /// Has no field: its help, and the rest of what people see.
    Own(&'static str, Setting),
    /// The kubelet's, and harmless to ignore: reported. Whether it takes a value, and why.
    Ignored(Takes, &'static str),
    /// The kubelet's, now or once, and nothing that could be ignored: an error, with what to do.
    Refused(Takes, &'static str),
}

/// The field that a flag sets.
#[derive(Debug)]
pub struct Target {
    /// Whether it is a field of NodeletConfiguration, not of KubeletConfiguration.
    pub nodelet: bool,
    /// `logging.format`
    pub path: String,
    /// Its row.
    pub field: &'static Field,
}

/// How a flag is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// By nothing, or by `=true` or `=false`.
    Switch,
    /// By a value, after `=` or as the next argument.
    Value,
}

impl Flag {
    /// The field that it sets, if it sets one.
    #[must_use]
    pub fn target(&self) -> Option<&Target> {
        match &self.effect {
            Effect::Sets(target) => Some(target),
            Effect::Own(..) | Effect::Ignored(..) | Effect::Refused(..) => None,
        }
    }

    fn ty(&self) -> Option<Type> {
        self.target().map(|target| target.field.ty)
    }

    fn setting(&self) -> &Setting {
        match &self.effect {
            Effect::Sets(target) => target.field.setting.unwrap_or(&Setting::NONE),
            Effect::Own(_, setting) => setting,
            Effect::Ignored(..) | Effect::Refused(..) => &Setting::NONE,
        }
    }

    /// How it is followed.
    #[must_use]
    pub fn takes(&self) -> Takes {
        match (&self.effect, self.ty()) {
            (Effect::Ignored(takes, _) | Effect::Refused(takes, _), _) => *takes,
            (_, Some(Type::Bool)) => Takes::Switch,
            (_, _) => Takes::Value,
        }
    }

    /// Whether it is for people to use here: shown in `--help`.
    #[must_use]
    pub fn is_acted_on(&self) -> bool {
        match &self.effect {
            Effect::Own(..) => true,
            Effect::Ignored(..) | Effect::Refused(..) => false,
            Effect::Sets(target) => {
                matches!(target.field.support, Support::Yes | Support::Differs)
            }
        }
    }

    /// One line for `--help`, without the default.
    #[must_use]
    pub fn help(&self) -> &'static str {
        match &self.effect {
            Effect::Own(note, _) | Effect::Ignored(_, note) | Effect::Refused(_, note) => note,
            Effect::Sets(target) => target.field.note,
        }
    }

    /// The group of the flag in `--help`.
    #[must_use]
    pub fn heading(&self) -> &'static str {
        self.setting().heading
    }

    /// What stands between a key and its value.
    #[must_use]
    pub fn separator(&self) -> char {
        match self.target().map(|target| target.path.as_str()) {
            Some("evictionHard" | "evictionSoft") => '<',
            _ => '=',
        }
    }

    /// Whether a key may stand alone and then has an empty value, as for the kubelet.
    #[must_use]
    pub fn takes_bare_keys(&self) -> bool {
        self.target().is_some_and(|target| target.path == "nodeLabels")
    }

    /// Whether each use replaces the list of the one before, as for the kubelet. Other lists and
    /// maps grow.
    #[must_use]
    pub fn replaces_its_list(&self) -> bool {
        self.target().is_some_and(|target| target.path == "registerWithTaints")
    }

    /// What stands for its value in `--help`.
    #[must_use]
    pub fn value_name(&self) -> &'static str {
        match (self.setting().value, self.ty()) {
            ("", Some(Type::Bool)) => "BOOL",
            ("", Some(Type::Duration)) => "DURATION",
            ("", Some(Type::Int32 | Type::Int64)) => "N",
            ("", Some(Type::List(_))) => "A,B,...",
            ("", Some(Type::Map(Type::List(_)))) => "NAME:VALUE",
            ("", Some(Type::Map(_))) => "K=V,...",
            ("", _) => "TEXT",
            (value, _) => value,
        }
    }

    /// Its default as text.
    #[must_use]
    pub fn default(&self) -> Option<&'static str> {
        self.setting().default
    }
}

/// Every flag: nodelet's own, those of fields in the order of their tables, and the rest.
#[must_use]
pub fn flags() -> &'static [Flag] {
    static FLAGS: LazyLock<Vec<Flag>> = LazyLock::new(|| {
        let own = OWN.iter().map(|(name, help, setting)| (*name, Effect::Own(help, *setting)));
        let fields = of_fields(NODELET, true).chain(of_fields(KUBELET, false));
        let others = OTHERS.iter().map(|other| match other.refused {
            true => (other.name, Effect::Refused(other.takes, other.why)),
            false => (other.name, Effect::Ignored(other.takes, other.why)),
        });
        let all = own.chain(fields).chain(others);
        all.map(|(name, effect)| Flag { name, effect }).collect()
    });
    &FLAGS
}

fn of_fields(
    table: &'static [Field],
    nodelet: bool,
) -> impl Iterator<Item = (&'static str, Effect)> {
    leaves(table).into_iter().filter_map(move |(path, field)| {
        let name = field.setting?.flag?;
        Some((name, Effect::Sets(Target { nodelet, path, field })))
    })
}

/// The flag of a name without dashes; `_` and `-` are the same.
#[must_use]
pub fn flag(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    flags().iter().find(|flag| flag.name == name)
}

/// A flag without a field: its group in `--help`, and what stands for its value there.
const fn own(heading: &'static str, value: &'static str) -> Setting {
    Setting { heading, value, ..Setting::NONE }
}
const fn ignored(name: &'static str, why: &'static str) -> Other {
    Other { name, why, takes: Takes::Value, refused: false }
}
const fn ignored_switch(name: &'static str, why: &'static str) -> Other {
    Other { takes: Takes::Switch, ..ignored(name, why) }
}
const fn refused(name: &'static str, why: &'static str) -> Other {
    Other { refused: true, ..ignored(name, why) }
}
const fn refused_switch(name: &'static str, why: &'static str) -> Other {
    Other { takes: Takes::Switch, ..refused(name, why) }
}

/// The kubeconfig with which a node joins; kubeadm's unit names it always.
pub(super) const BOOTSTRAP_FLAG: &str = "bootstrap-kubeconfig";
const STATS: &str = "nodelet does not contain cAdvisor";
const REMOVED_CRI: &str =
    "was removed from the kubelet: name the runtime's socket with --container-runtime-endpoint";
const REMOVED_CNI: &str = "was removed from the kubelet: the container runtime calls the CNI \
     plugins, configure it there";
const REMOVED: &str = "was removed from the kubelet: leave it out";
const REMOVED_LOG: &str = "was removed from the kubelet: the log goes to standard error; redirect \
     it from there";

/// Name, help and the rest of the flags that have no field.
const OWN: &[(&str, &str, Setting)] = &[
    (
        "config",
        "configuration file: a KubeletConfiguration and, as a second document, a NodeletConfiguration",
        own("Configuration files", "FILE"),
    ),
    (
        "config-dir",
        "directory of drop-ins (*.conf), merged over --config in lexical order",
        own("Configuration files", "DIR"),
    ),
    (
        "root-dir",
        "directory of state that must survive a reboot; for a program that is installed as `kubelet`, the default is /var/lib/kubelet",
        own(DIRECTORIES, "DIR").default("/var/lib/nodelet"),
    ),
    (
        "hostname-override",
        "the node's name, which is the suffix of static pod names",
        own(NODE, "NAME").default("the name kept from the first start"),
    ),
    (
        "kubeconfig",
        "how to reach the API server; without it the agent runs standalone and contacts no API server",
        own(THE_AGENT_ITSELF, "FILE"),
    ),
    (
        BOOTSTRAP_FLAG,
        "kubeconfig with which a client certificate is requested when the file of --kubeconfig does not exist yet, or its certificate is missing, damaged or has expired",
        own(THE_AGENT_ITSELF, "FILE"),
    ),
    (
        "cert-dir",
        "directory of the client certificates that the agent requests, and of the certificate of the HTTPS API where tlsCertFile is not set",
        own(DIRECTORIES, "DIR").default("ROOT_DIR/pki"),
    ),
    ("node-ip", "the node's address, or one of each family", own(NODE, "IP[,IP]")),
    (
        "cloud-provider",
        "a cloud controller manager initializes the Node and sets its addresses; needs --kubeconfig",
        own(NODE, "external"),
    ),
    (
        "image-credential-provider-config",
        "configuration of credential provider plugins (CredentialProviderConfig), or a directory of such files",
        own(IMAGE_PULLS, "PATH"),
    ),
    (
        "image-credential-provider-bin-dir",
        "directory of the credential provider plugins",
        own(IMAGE_PULLS, "DIR"),
    ),
];

/// A flag of the kubelet that no field mirrors.
struct Other {
    name: &'static str,
    why: &'static str,
    takes: Takes,
    refused: bool,
}

const OTHERS: &[Other] = &[
    ignored("lock-file", "the agent locks its root directory, so that only one agent uses it"),
    ignored_switch(
        "exit-on-lock-contention",
        "the agent locks its root directory, so that only one agent uses it",
    ),
    ignored("runtime-cgroups", "the agent manages only the cgroups of pods"),
    ignored(
        "minimum-container-ttl-duration",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored(
        "maximum-dead-containers",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored(
        "maximum-dead-containers-per-container",
        "the agent removes dead containers by the kubelet's default rules",
    ),
    ignored_switch(
        "experimental-allocatable-ignore-eviction",
        "hard eviction thresholds always reduce the resources that pods may request",
    ),
    ignored(
        "experimental-mounter-path",
        "the agent runs the `mount` program of the node for NFS volumes, and no program for other volumes",
    ),
    ignored("housekeeping-interval", STATS),
    ignored("max-housekeeping-interval", STATS),
    ignored("global-housekeeping-interval", STATS),
    ignored("application-metrics-count-limit", STATS),
    ignored("boot-id-file", STATS),
    ignored("machine-id-file", STATS),
    ignored("container-hints", STATS),
    ignored("containerd", STATS),
    ignored("containerd-namespace", STATS),
    ignored_switch("enable-load-reader", STATS),
    ignored("event-storage-age-limit", STATS),
    ignored("event-storage-event-limit", STATS),
    ignored_switch("log-cadvisor-usage", STATS),
    ignored("storage-driver-buffer-duration", STATS),
    ignored("storage-driver-db", STATS),
    ignored("storage-driver-host", STATS),
    ignored("storage-driver-password", STATS),
    ignored_switch("storage-driver-secure", STATS),
    ignored("storage-driver-table", STATS),
    ignored("storage-driver-user", STATS),
    // What would change what the agent is.
    // Fatal in the kubelet too.
    refused("container-runtime", REMOVED_CRI),
    refused("docker-endpoint", REMOVED_CRI),
    refused(
        "pod-infra-container-image",
        "was removed from the kubelet: set the pause image in the container runtime (containerd 1: sandbox_image, containerd 2: sandbox)",
    ),
    refused("network-plugin", REMOVED_CNI),
    refused("cni-bin-dir", REMOVED_CNI),
    refused("cni-conf-dir", REMOVED_CNI),
    refused_switch("keep-terminated-pod-volumes", REMOVED),
    refused(
        "azure-container-registry-config",
        "was removed from the kubelet: put credentials into docker's configuration file",
    ),
    refused("cloud-config", REMOVED),
    refused("dynamic-config-dir", "was removed from the kubelet: use --config and --config-dir"),
    refused_switch("logtostderr", REMOVED_LOG),
    refused_switch("alsologtostderr", REMOVED_LOG),
    refused("log-dir", REMOVED_LOG),
    refused("log-file", REMOVED_LOG),
    refused("stderrthreshold", REMOVED_LOG),
];
