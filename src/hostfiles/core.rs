//! The pure part: contents of `/etc/hosts`, names of log files and links.

use crate::model::{PodKey, k8s};
use std::{
    fmt::Write as _,
    net::IpAddr,
    path::{Component, Path},
};

/// Longest file name on Linux file systems, in bytes.
const MAX_FILE_NAME: usize = 255;

/// What a pod's `/etc/hosts` is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EtcHosts<'a> {
    /// The node's own file, for a pod on the host's network; `None` for a pod of its own.
    pub node_hosts: Option<&'a str>,
    /// The pod's IPs, primary first.
    pub pod_ips: &'a [IpAddr],
    pub hostname: &'a str,
    /// Its DNS domain; empty without a subdomain.
    pub domain: &'a str,
    /// `hostAliases`
    pub aliases: &'a [k8s::HostAlias],
}

/// The content of a pod's `/etc/hosts`, byte for byte the kubelet's.
#[must_use]
pub fn etc_hosts(input: &EtcHosts<'_>) -> String {
    let mut text = match input.node_hosts {
        Some(node_hosts) => {
            format!("# Kubernetes-managed hosts file (host network).\n{node_hosts}")
        }
        None => own_hosts(input),
    };
    if !input.aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in input.aliases {
        text.push_str(&alias.ip);
        for name in alias.hostnames.iter().flatten() {
            text.push('\t');
            text.push_str(name);
        }
        text.push('\n');
    }
    text
}

fn own_hosts(input: &EtcHosts<'_>) -> String {
    let mut text = "# Kubernetes-managed hosts file.\n\
        127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\n\
        fe00::0\tip6-localnet\n\
        fe00::0\tip6-mcastprefix\n\
        fe00::1\tip6-allnodes\n\
        fe00::2\tip6-allrouters\n"
        .to_owned();
    let (hostname, domain) = (input.hostname, input.domain);
    for ip in input.pod_ips {
        let written = if domain.is_empty() {
            writeln!(text, "{ip}\t{hostname}")
        } else {
            writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}")
        };
        // Writing to a String can't fail.
        debug_assert!(written.is_ok());
    }
    text
}

/// One plain path component.
pub(super) fn is_file_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!(components.next(), Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
}

/// `<pod>_<namespace>_<container>-<id>.log`, its first part cut so that it fits.
pub(super) fn link_name(key: &PodKey, container: &str, id: &str) -> String {
    let name = links_begin(key) + &format!("{container}-{id}");
    truncated(name, MAX_FILE_NAME - ".log".len()) + ".log"
}

/// How the names of all links to a pod's logs begin.
pub(super) fn links_begin(key: &PodKey) -> String {
    truncated(format!("{}_{}_", key.name, key.namespace), MAX_FILE_NAME - ".log".len())
}

fn truncated(mut name: String, longest: usize) -> String {
    let mut end = name.len().min(longest);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

/// The container id at the end of a link's name. Cut short where the name was.
pub(super) fn id_of_link(file: &str) -> Option<&str> {
    let (_, id) = file.strip_suffix(".log")?.rsplit_once('-')?;
    (!id.is_empty()).then_some(id)
}

/// Namespace, name and uid in the name of a pod's log directory.
pub(super) fn parse_log_directory(name: &str) -> Option<(PodKey, &str)> {
    let (rest, uid) = name.rsplit_once('_')?;
    let (namespace, pod) = rest.split_once('_')?;
    let complete = !namespace.is_empty() && !pod.is_empty() && !uid.is_empty();
    complete.then(|| (PodKey::new(namespace, pod), uid))
}
