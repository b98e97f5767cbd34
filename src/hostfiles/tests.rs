use super::{core::*, pod_files::overwrite, *};
use crate::{
    beneath::{Removal, Slice},
    model::{ContainerId, PodKey, PodUid, k8s},
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde_json::{Value, json};
use std::{
    fs,
    io::Seek as _,
    os::unix::fs::{FileExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    time::Duration,
};
use tempfile::TempDir;

fn host_files() -> (TempDir, HostFiles) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let paths = HostFilePaths {
        network_results_dir: at("results"),
        root_dir: at("root"),
        pod_logs_dir: at("log/pods"),
        links_dir: at("log/containers"),
        node_hosts: at("hosts"),
    };
    (dir, HostFiles::new(paths))
}

fn key() -> PodKey {
    PodKey::new("default", "web-node1")
}

fn uid() -> PodUid {
    PodUid::from("0123abcd")
}

fn remove_pod_logs(files: &HostFiles) -> Result<(), HostFileError> {
    let removal = files.remove_pod_logs(&key(), &uid(), &mut Slice::new(Duration::MAX))?;
    assert_eq!(removal, Removal::Complete);
    Ok(())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn spec(value: Value) -> k8s::PodSpec {
    serde_json::from_value(value).unwrap()
}

fn alias(ip: &str, names: &[&str]) -> k8s::HostAlias {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    k8s::HostAlias { ip: ip.to_owned(), hostnames: Some(names) }
}

#[test]
fn etc_hosts_is_the_kubelets() {
    let ips = ["10.88.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
    let hosts =
        EtcHosts { node_hosts: None, pod_ips: &ips, hostname: "web", domain: "", aliases: &[] };
    let head = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
        ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
        fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
    assert_eq!(etc_hosts(&hosts), format!("{head}10.88.0.5\tweb\nfd00::5\tweb\n"));
    let aliases = [alias("1.2.3.4", &["a", "b.c"]), alias("5.6.7.8", &["d"])];
    let with_domain = EtcHosts { domain: "sub.ns.svc.cluster.local", aliases: &aliases, ..hosts };
    assert_eq!(
        etc_hosts(&with_domain),
        format!(
            "{head}10.88.0.5\tweb.sub.ns.svc.cluster.local\tweb\n\
             fd00::5\tweb.sub.ns.svc.cluster.local\tweb\n\n\
             # Entries added by HostAliases.\n1.2.3.4\ta\tb.c\n5.6.7.8\td\n"
        )
    );
    let on_host =
        EtcHosts { node_hosts: Some("127.0.0.1 localhost\n"), aliases: &aliases[1..], ..hosts };
    assert_eq!(
        etc_hosts(&on_host),
        "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n\
         # Entries added by HostAliases.\n5.6.7.8\td\n"
    );
}

fn node_dns() -> NodeDns {
    NodeDns {
        resolv_conf: Some(ResolvConf::parse(
            "# comment\nnameserver 1.1.1.1\nnameserver  8.8.8.8 # x\nsearch old.example\n\
             domain ignored\n search example.com. . corp\noptions ndots:2 rotate\n\
             options ndots:3\nnameserver\n",
        )),
        cluster_servers: vec!["10.96.0.10".to_owned()],
        cluster_domain: "cluster.local".to_owned(),
        node_ips: Vec::new(),
    }
}

#[test]
fn reads_resolv_conf() {
    let parsed = node_dns().resolv_conf.unwrap();
    assert_eq!(parsed.servers, ["1.1.1.1", "8.8.8.8"]);
    assert_eq!(parsed.searches, ["example.com", "corp"]);
    assert_eq!(parsed.options, ["ndots:3", "rotate"]);
}

#[test]
fn dns_follows_the_policy() {
    let node = node_dns();
    let none: [&str; 0] = [];
    for (policy, host_network, servers, searches, options) in [
        (
            Some("ClusterFirst"),
            false,
            vec!["10.96.0.10"],
            vec![
                "ns.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "example.com",
                "corp",
            ],
            vec!["ndots:5"],
        ),
        (
            Some("ClusterFirst"),
            true,
            vec!["1.1.1.1", "8.8.8.8"],
            vec!["example.com", "corp"],
            vec!["ndots:3", "rotate"],
        ),
        (
            Some("Default"),
            false,
            vec!["1.1.1.1", "8.8.8.8"],
            vec!["example.com", "corp"],
            vec!["ndots:3", "rotate"],
        ),
        (Some("None"), false, none.to_vec(), none.to_vec(), none.to_vec()),
    ] {
        let pod = spec(json!({"containers": [], "dnsPolicy": policy, "hostNetwork": host_network}));
        let dns = pod_dns(&pod, "ns", &node);
        assert_eq!(dns.servers, servers, "{policy:?}");
        assert_eq!(dns.searches, searches, "{policy:?}");
        assert_eq!(dns.options, options, "{policy:?}");
        assert!(dns.warnings.is_empty());
    }
    let pod = spec(
        json!({"containers": [], "dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
    );
    assert_eq!(pod_dns(&pod, "ns", &node).servers, ["10.96.0.10"]);
    let bare = NodeDns { cluster_domain: String::new(), ..node.clone() };
    assert_eq!(pod_dns(&pod, "ns", &bare).searches, ["example.com", "corp"]);

    let alone = NodeDns { cluster_servers: Vec::new(), ..node };
    let dns = pod_dns(&pod, "ns", &alone);
    assert_eq!(dns.servers, ["1.1.1.1", "8.8.8.8"]);
    assert_eq!(dns.warnings, [DnsWarning::MissingClusterDns]);
    assert_eq!(dns.warnings[0].reason(), "MissingClusterDNS");

    let off = NodeDns { resolv_conf: None, node_ips: vec!["fd00::1".parse().unwrap()], ..alone };
    let pod = spec(json!({"containers": [], "dnsPolicy": "Default"}));
    let dns = pod_dns(&pod, "ns", &off);
    assert_eq!((dns.servers, dns.searches), (vec!["::1".to_owned()], vec![".".to_owned()]));
}

#[test]
fn dns_config_is_added_and_cut_to_what_resolvers_take() {
    let pod = spec(json!({"containers": [], "dnsPolicy": "Default", "dnsConfig": {
        "nameservers": ["8.8.8.8", "9.9.9.9"],
        "searches": ["corp", "more"],
        "options": [{"name": "ndots", "value": "1"}, {"name": "edns0"}],
    }}));
    let dns = pod_dns(&pod, "ns", &node_dns());
    assert_eq!(dns.servers, ["1.1.1.1", "8.8.8.8", "9.9.9.9"]);
    assert_eq!(dns.searches, ["example.com", "corp", "more"]);
    assert_eq!(dns.options, ["ndots:1", "rotate", "edns0"]);
    assert!(dns.warnings.is_empty());

    let many: Vec<String> = (0..40).map(|n| format!("d{n}.example")).collect();
    let pod = spec(json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {
        "nameservers": ["1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4"], "searches": many,
    }}));
    let dns = pod_dns(&pod, "ns", &NodeDns::default());
    assert_eq!((dns.servers.len(), dns.searches.len()), (3, 32));
    assert_eq!(
        dns.warnings[0].to_string(),
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: 1.0.0.1 1.0.0.2 1.0.0.3"
    );
    assert!(dns.warnings[1].to_string().starts_with("Search Line limits were exceeded, "));

    let long: Vec<String> = (0..10).map(|n| format!("{n}{}", "x".repeat(250))).collect();
    let too_long = "y".repeat(256);
    let searches: Vec<&String> = [&too_long].into_iter().chain(&long).collect();
    let pod =
        spec(json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {"searches": searches}}));
    let dns = pod_dns(&pod, "ns", &NodeDns::default());
    assert_eq!(dns.searches, long[..8]);
    assert!(dns.searches.join(" ").len() <= 2048);
    assert_eq!(dns.warnings.len(), 1);
}

#[test]
fn file_names() {
    assert_eq!(link_name(&key(), "web", "abc"), "web-node1_default_web-abc.log");
    assert_eq!(id_of_link("web-node1_default_web-abc.log"), Some("abc"));
    assert_eq!(id_of_link("web.log"), None);
    let long = link_name(&PodKey::new("ns", &"ä".repeat(200)), "c", "id");
    assert!(long.len() <= 255 && long.ends_with(".log"));
    assert_eq!(parse_log_directory("default_web-node1_0123abcd"), Some((key(), "0123abcd")));
    assert_eq!(parse_log_directory("lost+found"), None);
    assert_eq!(parse_log_directory("a_b"), None);
}

#[test]
fn a_hosts_file_that_cannot_be_written_keeps_its_content() {
    // It can't grow, as on a full disk.
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = fs::File::from(memfd_create("hosts", flags).unwrap());
    let content = || {
        let mut found = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut found, 0).unwrap();
        String::from_utf8(found).unwrap()
    };
    let before = "1".repeat(5000);
    overwrite(&file, before.as_bytes()).unwrap();
    fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    (&file).rewind().unwrap();
    assert!(overwrite(&file, "2".repeat(9000).as_bytes()).is_err());
    assert_eq!(content(), before);
    (&file).rewind().unwrap();
    overwrite(&file, b"short").unwrap();
    assert_eq!(content(), "short");
}

#[test]
fn termination_logs_of_instances_that_are_gone_are_removed() {
    let (dir, files) = host_files();
    let create = |used: Option<&[&PathBuf]>| {
        let used = used.map(|used| {
            used.iter().map(|path| path.to_str().unwrap().into()).collect::<Vec<Box<str>>>()
        });
        files.create_termination_log(&uid(), "web", used.as_deref()).unwrap()
    };
    let (first, second) = (create(None), create(None));
    assert_ne!(first, second);
    fs::write(&first, "told").unwrap();
    // A dead instance that is kept has the first one mounted; nothing has the second one.
    let third = create(Some(&[&first]));
    assert_eq!(fs::read_to_string(&first).unwrap(), "told");
    assert!(!second.exists() && third.exists());
    // The runtime has not told what an instance has mounted.
    let fourth = create(None);
    assert!(first.exists() && third.exists());
    // Nothing is followed out of the directory.
    let (outside, link) = (dir.path().join("outside"), first.with_file_name("link"));
    fs::write(&outside, "").unwrap();
    symlink(&outside, &link).unwrap();
    let fifth = create(Some(&[]));
    let left: Vec<PathBuf> =
        fs::read_dir(link.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(outside.exists() && fifth.exists() && !fourth.exists());
}

#[test]
fn pod_files_are_written_where_containers_find_them() {
    let (dir, files) = host_files();
    let hosts =
        EtcHosts { node_hosts: None, pod_ips: &[], hostname: "web", domain: "", aliases: &[] };
    let path = files.write_etc_hosts(&uid(), false, &hosts).unwrap();
    assert_eq!(path, dir.path().join("root/pods/0123abcd/etc-hosts"));
    assert_eq!(mode(&path), 0o644);
    assert_eq!(mode(path.parent().unwrap()), 0o750);
    // Not touched while it is as it should be: writing it again may fail half-way on a full disk.
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::open(&path).unwrap().set_modified(long_ago).unwrap();
    files.write_etc_hosts(&uid(), false, &hosts).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    // Rewritten in place: the file that containers have mounted changes.
    let before = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap());
    fs::write(dir.path().join("hosts"), "127.0.0.1 node\n").unwrap();
    files.write_etc_hosts(&uid(), true, &hosts).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::ino(&fs::metadata(&path).unwrap()), before);
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n");

    let log = files.create_termination_log(&uid(), "web", None).unwrap();
    assert_eq!(mode(&log), 0o666);
    assert_eq!(log.parent().unwrap(), dir.path().join("root/pods/0123abcd/containers/web"));
    assert_eq!(log.file_name().unwrap().len(), 8);
    assert!(files.create_termination_log(&uid(), "../x", None).is_err());
    assert!(files.create_termination_log(&PodUid::from(".."), "web", None).is_err());

    fs::remove_file(dir.path().join("hosts")).unwrap();
    assert!(files.write_etc_hosts(&uid(), true, &hosts).is_err());
    let conf = dir.path().join("resolv.conf");
    assert!(ResolvConf::read(&conf).is_err());
    fs::write(&conf, "nameserver 1.1.1.1\n").unwrap();
    assert_eq!(ResolvConf::read(&conf).unwrap().servers, ["1.1.1.1"]);
    fs::File::create(&conf).unwrap().set_len((10 << 20) + 1).unwrap();
    assert!(matches!(ResolvConf::read(&conf), Err(HostFileError::TooLarge { .. })));
}

#[test]
fn logs_of_a_name_too_long_for_a_directory_are_gone_already() {
    let (_dir, files) = host_files();
    let (key, uid) = (PodKey::new(&"n".repeat(63), &"p".repeat(240)), PodUid::from("u"));
    assert!(files.ensure_pod_log_dir(&key, &uid).is_err());
    files.remove_container_logs((&key, &uid), "main", &"id".into(), 0).unwrap();
    assert_eq!(files.next_restart_count(&key, &uid, "main").unwrap(), 0);
    let removal = files.remove_pod_logs(&key, &uid, &mut Slice::new(Duration::MAX)).unwrap();
    assert_eq!(removal, Removal::Complete);
}

#[test]
fn a_link_without_an_id_stays_with_the_newest_instance() {
    let (dir, files) = host_files();
    let key = PodKey::new(&"n".repeat(63), &"p".repeat(150));
    let container = "c".repeat(63);
    let logs = files.ensure_container_log_dir(&key, &uid(), &container).unwrap();
    let ids = ["c0", "c1"].map(ContainerId::from);
    for (count, id) in ids.iter().enumerate() {
        let log = logs.join(format!("{count}.log"));
        fs::write(&log, "").unwrap();
        files.link_container_log(&key, &container, id, &log).unwrap();
    }
    let links = || fs::read_dir(dir.path().join("log/containers")).unwrap().count();
    assert_eq!(links(), 1);
    files.remove_container_logs((&key, &uid()), &container, &ids[0], 0).unwrap();
    assert_eq!(links(), 1);
    files.remove_container_logs((&key, &uid()), &container, &ids[1], 1).unwrap();
    assert_eq!(links(), 0);
}

#[test]
fn log_directories_count_restarts_and_are_removed() {
    let (dir, files) = host_files();
    assert_eq!(files.next_restart_count(&key(), &uid(), "web").unwrap(), 0);
    let logs = files.ensure_container_log_dir(&key(), &uid(), "web").unwrap();
    files.ensure_container_log_dir(&key(), &uid(), "web").unwrap();
    assert_eq!(logs, dir.path().join("log/pods/default_web-node1_0123abcd/web"));
    assert_eq!(logs.parent().unwrap(), files.pod_log_dir(&key(), &uid()).unwrap());
    assert_eq!((mode(&logs), mode(logs.parent().unwrap())), (0o755, 0o755));
    assert_eq!(files.next_restart_count(&key(), &uid(), "web").unwrap(), 0);
    for name in ["0.log", "2.log", "2.log.20260101-000000", "10.log.gz", "notes"] {
        fs::write(logs.join(name), "").unwrap();
    }
    assert_eq!(files.next_restart_count(&key(), &uid(), "web").unwrap(), 11);

    let id = ContainerId::from("c2");
    let log = logs.join("2.log");
    // Not a log, and in nobody's way.
    fs::create_dir(logs.join("2.log.20260101-000001")).unwrap();
    files.link_container_log(&key(), "web", &id, &log).unwrap();
    files.link_container_log(&key(), "web", &id, &log).unwrap();
    let link = dir.path().join("log/containers/web-node1_default_web-c2.log");
    assert_eq!(fs::read_link(&link).unwrap(), log);
    files.remove_container_logs((&key(), &uid()), "web", &id, 2).unwrap();
    assert!(fs::symlink_metadata(&link).is_err());
    let mut left: Vec<_> = fs::read_dir(&logs).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["0.log", "10.log.gz", "2.log.20260101-000001", "notes"]);
    files.remove_container_logs((&key(), &uid()), "web", &id, 2).unwrap();

    assert_eq!(files.pods_with_logs(&uid()).unwrap(), [key()]);
    assert!(files.pods_with_logs(&"other".into()).unwrap().is_empty());
    remove_pod_logs(&files).unwrap();
    assert!(!logs.exists());
    remove_pod_logs(&files).unwrap();
    assert!(files.pods_with_logs(&uid()).unwrap().is_empty());
}

#[test]
fn only_our_dead_links_are_removed() {
    let (dir, files) = host_files();
    let logs = files.ensure_container_log_dir(&key(), &uid(), "web").unwrap();
    let links = dir.path().join("log/containers");
    let present = logs.join("0.log");
    fs::write(&present, "").unwrap();
    files.link_container_log(&key(), "web", &"alive".into(), &present).unwrap();
    // A log that the runtime hasn't made yet is not linked.
    files.link_container_log(&key(), "web", &"early".into(), &logs.join("9.log")).unwrap();
    assert!(!links.join("web-node1_default_web-early.log").is_symlink());
    for (name, target) in [
        ("web-node1_default_web-dead.log", logs.join("1.log")),
        ("web-node1_default_web-rotating.log", logs.join("2.log")),
        ("web-node1_default_web-young.log", logs.join("4.log")),
        ("of-somebody-else.log", dir.path().join("elsewhere.log")),
        (
            "db_default_db-rotated.log",
            dir.path().join("log/pods/default_db_other-uid").join("db/0.log"),
        ),
    ] {
        symlink(target, links.join(name)).unwrap();
    }
    fs::write(logs.join("4.log.20260101-000000"), "").unwrap();
    fs::write(links.join("plain.log"), "").unwrap();
    let removed =
        files.remove_dead_links(|pod| *pod == uid(), |id| id.as_str() == "rotating").unwrap();
    assert_eq!(removed, 1);
    let mut left: Vec<_> = fs::read_dir(&links).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(
        left,
        [
            "db_default_db-rotated.log",
            "of-somebody-else.log",
            "plain.log",
            "web-node1_default_web-alive.log",
            "web-node1_default_web-rotating.log",
            "web-node1_default_web-young.log",
        ]
    );
    // An older link is replaced, a file is not.
    let other = logs.join("3.log");
    fs::write(&other, "").unwrap();
    files.link_container_log(&key(), "web", &"alive".into(), &other).unwrap();
    assert_eq!(fs::read_link(links.join("web-node1_default_web-alive.log")).unwrap(), other);
    fs::write(links.join("web-node1_default_web-file.log"), "precious").unwrap();
    let refused = files.link_container_log(&key(), "web", &"file".into(), &other).unwrap_err();
    assert!(matches!(refused, HostFileError::Suspicious { .. }));
}

#[test]
fn symlinks_in_log_directories_are_refused() {
    let (dir, files) = host_files();
    let target = dir.path().join("target");
    fs::create_dir_all(target.join("web")).unwrap();
    fs::write(target.join("web/0.log"), "").unwrap();
    fs::create_dir_all(dir.path().join("log/pods")).unwrap();
    let pod = files.pod_log_dir(&key(), &uid()).unwrap();
    symlink(&target, &pod).unwrap();
    let id = ContainerId::from("c");
    let suspicious = |error: HostFileError| matches!(error, HostFileError::Suspicious { .. });
    assert!(suspicious(files.ensure_pod_log_dir(&key(), &uid()).unwrap_err()));
    assert!(suspicious(files.next_restart_count(&key(), &uid(), "web").unwrap_err()));
    assert!(suspicious(files.remove_container_logs((&key(), &uid()), "web", &id, 0).unwrap_err()));
    assert!(suspicious(remove_pod_logs(&files).unwrap_err()));
    fs::remove_file(&pod).unwrap();
    files.ensure_pod_log_dir(&key(), &uid()).unwrap();
    symlink(target.join("web"), pod.join("web")).unwrap();
    assert!(suspicious(files.ensure_container_log_dir(&key(), &uid(), "web").unwrap_err()));
    assert!(suspicious(files.remove_container_logs((&key(), &uid()), "web", &id, 0).unwrap_err()));
    // Removing the pod's logs removes the link, not what it points to.
    remove_pod_logs(&files).unwrap();
    assert!(target.join("web/0.log").exists());
}

#[test]
fn only_what_cni_cannot_read_of_this_sandbox_is_removed() {
    let (dir, files) = host_files();
    let sandbox = crate::model::SandboxId::from("5a5a");
    assert_eq!(files.remove_damaged_network_results(&sandbox).unwrap(), Vec::<PathBuf>::new());
    let results = dir.path().join("results");
    fs::create_dir(&results).unwrap();
    for (name, content) in [
        ("net-5a5a-eth0", ""),
        ("cni-loopback-5a5a-lo", "{\"kind\": \"cniCacheV1\"}"),
        ("net-5a5a-eth1", "{\"kind\": "),
        ("net-5b5b-eth0", ""),
    ] {
        fs::write(results.join(name), content).unwrap();
    }
    let mut removed = files.remove_damaged_network_results(&sandbox).unwrap();
    removed.sort();
    assert_eq!(removed, [results.join("net-5a5a-eth0"), results.join("net-5a5a-eth1")]);
    assert_eq!(fs::read_dir(&results).unwrap().count(), 2);
}
