//! PersistentVolumes of every kind, as pods mount them.

use super::*;
use crate::{
    model::{PersistentSource, PersistentVolume},
    podspec::BoundVolume,
};

/// What is claimed when the claim of volume `v` is bound to this source.
fn claimed(source: PersistentSource, read_only: bool) -> ClaimedVolumes {
    claimed_with(source, read_only, &[])
}

fn claimed_with(source: PersistentSource, read_only: bool, options: &[&str]) -> ClaimedVolumes {
    let mount_options = options.iter().map(|option| (*option).into()).collect();
    let name = "pv".into();
    let volume =
        Arc::new(PersistentVolume { name, is_block: false, source, mount_options, gid: None });
    [("v".to_owned(), Ok(BoundVolume { volume, read_only }))].into()
}

/// A PersistentVolume is mounted as the pod's own NFS volume is. The claim or the PersistentVolume
/// makes it read-only.
#[test]
fn a_claimed_nfs_volume_is_mounted_with_its_options() {
    let root = TestRoot::new();
    let pod = simple_pod(&json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}));
    let nfs = |server: &str, read_only| PersistentSource::Nfs {
        server: server.into(),
        path: "/srv".into(),
        read_only,
    };
    for (of_volume, of_claim, read_only) in
        [(false, false, false), (false, true, true), (true, false, true)]
    {
        let claimed = claimed_with(nfs("nas", of_volume), of_claim, &["soft", "nfsvers=4.1"]);
        let wanted = NfsMount {
            volume: "v".to_owned(),
            export: "nas:/srv".to_owned(),
            directory: root.volumes.nfs_directory(&uid(), "v").unwrap(),
            read_only,
            options: vec!["soft".into(), "nfsvers=4.1".into()],
        };
        assert_eq!(root.volumes.nfs_to_mount(&pod, &uid(), &claimed).unwrap(), [wanted]);
    }
    let failure = |claimed: ClaimedVolumes| {
        assert_eq!(root.volumes.nfs_to_mount(&pod, &uid(), &claimed).unwrap().len(), 0);
        let prepared = Prepared { claimed, ..Prepared::default() };
        let failed = root.volumes.setup(&pod, &uid(), None, prepared).unwrap_err();
        failed.failures[0].error.to_string()
    };
    assert_eq!(failure(claimed(nfs("-o", false), false)), "must be a host name or an IP address");
    // The options of the agent, which come behind it, would be a part of its value.
    let open = "context=\"system_u:object_r:nfs_t";
    let refused = failure(claimed_with(nfs("nas", false), false, &["bg", open]));
    assert!(refused.contains("a quotation mark that is not closed"), "{refused}");
    let closed = claimed_with(nfs("nas", false), false, &[&format!("{open}\"")]);
    assert_eq!(root.volumes.nfs_to_mount(&pod, &uid(), &closed).unwrap().len(), 1);
    let unbound = ClaimError::NotKnown("data".into());
    assert!(failure([("v".to_owned(), Err(unbound))].into()).contains("has not been read"));
}

#[test]
fn a_persistent_volume_is_mounted_and_stays() {
    let root = TestRoot::new();
    let disk = root.host("disk");
    fs::create_dir_all(disk.join("part")).unwrap();
    let path: Box<str> = disk.to_str().unwrap().into();
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let pod = pod(&claim, &mounts, None);
    for (source, read_only, relabel) in [
        (PersistentSource::Local { path: path.clone() }, false, true),
        (PersistentSource::Local { path: path.clone() }, true, false),
        (PersistentSource::HostPath { path, kind: "Directory".into() }, false, false),
    ] {
        let claimed = claimed(source, read_only);
        let prepared = Prepared { claimed: claimed.clone(), ..Prepared::default() };
        root.volumes.setup(&pod, &uid(), None, prepared).unwrap();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let mounts = root.volumes.mounts_for(&MountInputs {
            pod: &pod,
            uid: &uid(),
            container: "web",
            mounts: container.volume_mounts.as_deref().unwrap(),
            expanded_sub_paths: &[],
            claimed: &claimed,
        });
        let mounts = mounts.unwrap();
        assert_eq!(host_path(&mounts[0]), disk);
        assert_eq!((mounts[0].readonly, mounts[0].selinux_relabel), (read_only, relabel));
    }
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(disk.join("part").is_dir(), "data of a PersistentVolume are never deleted");
}

#[test]
fn a_local_volume_with_mount_options_is_mounted_for_its_pod() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let disk = root.host("disk");
    fs::create_dir(&disk).unwrap();
    fs::write(disk.join("precious"), "").unwrap();
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = pod(&claim, &json!([{"name": "v", "mountPath": "/v"}]), None);
    let source = PersistentSource::Local { path: disk.to_str().unwrap().into() };
    let claimed = |options: &[&str]| claimed_with(source.clone(), false, options);
    let mounted = |claimed: &ClaimedVolumes| {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        root.volumes.mounts_for(&MountInputs {
            pod: &pod,
            uid: &uid(),
            container: "web",
            mounts: container.volume_mounts.as_deref().unwrap(),
            expanded_sub_paths: &[],
            claimed,
        })
    };
    let set_up = |claimed: &ClaimedVolumes| {
        let prepared = Prepared { claimed: claimed.clone(), ..Prepared::default() };
        root.volumes.setup(&pod, &uid(), None, prepared).unwrap();
    };
    let directory = root.pod_dir().join("volumes/kubernetes.io~local-volume/v");
    let quick = claimed(&["noexec,nosuid", "noatime", "discard"]);
    assert!(matches!(mounted(&quick), Err(VolumeError::NotMounted { .. })));
    // An agent was killed before it set the options.
    fs::create_dir_all(&directory).unwrap();
    mount(Some(&disk), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    for _ in 0..2 {
        set_up(&quick);
        assert_eq!(root.mounts(), std::slice::from_ref(&directory), "it is mounted once");
        let flags = statvfs(&directory).unwrap().flags();
        let wanted = FsFlags::ST_NOEXEC | FsFlags::ST_NOSUID | FsFlags::ST_NOATIME;
        assert!(flags.contains(wanted) && !flags.contains(FsFlags::ST_RDONLY), "{flags:?}");
    }
    assert!(!statvfs(&disk).unwrap().flags().contains(FsFlags::ST_NOEXEC), "only for the pod");
    let mounts = mounted(&quick).unwrap();
    assert_eq!((host_path(&mounts[0]), mounts[0].readonly), (directory.as_path(), false));
    assert!(remove_pod_dir(&root.volumes, &uid()).is_err(), "it is mounted");
    teardown(&root.volumes, &uid()).unwrap();
    assert_eq!(root.mounts(), Vec::<PathBuf>::new());

    let read_only = claimed(&["ro"]);
    set_up(&read_only);
    assert!(statvfs(&directory).unwrap().flags().contains(FsFlags::ST_RDONLY));
    assert!(mounted(&read_only).unwrap()[0].readonly);
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(disk.join("precious").exists() && !root.pod_dir().exists());
}

#[test]
fn a_local_volume_must_be_a_directory() {
    let root = TestRoot::new();
    let pod = simple_pod(&json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}));
    let failure = |claimed: ClaimedVolumes| {
        let prepared = Prepared { claimed, ..Prepared::default() };
        let failed = root.volumes.setup(&pod, &uid(), None, prepared).unwrap_err();
        failed.failures[0].error.to_string()
    };
    let (missing, file) = (root.host("missing"), root.host("file"));
    fs::write(&file, "").unwrap();
    let local = |path: &Path| PersistentSource::Local { path: path.to_str().unwrap().into() };
    let expected = format!("path {missing:?} does not exist");
    assert_eq!(failure(claimed(local(&missing), false)), expected);
    let expected = format!("only directories are supported as local volumes, and {file:?} is none");
    assert_eq!(failure(claimed(local(&file), false)), expected);
    let unknown = ClaimError::Unsupported("csi".into());
    let expected = "PersistentVolumes of kind csi are not supported by this node";
    assert_eq!(failure([("v".to_owned(), Err(unknown))].into()), expected);
    assert!(!missing.exists());
}

#[test]
fn fs_group_owns_the_data_of_a_local_volume_once() {
    if skip_without(&[root()]) {
        return;
    }
    let root = TestRoot::new();
    let disk = root.host("disk");
    fs::create_dir(&disk).unwrap();
    fs::write(disk.join("file"), "").unwrap();
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let pod = pod(&claim, &json!([{"name": "v", "mountPath": "/v"}]), Some(4711));
    let group = |name: &str| fs::metadata(disk.join(name)).unwrap().gid();
    let set_up = |source: PersistentSource, read_only| {
        let prepared = Prepared { claimed: claimed(source, read_only), ..Prepared::default() };
        root.volumes.setup(&pod, &uid(), None, prepared).unwrap();
    };
    let path: Box<str> = disk.to_str().unwrap().into();
    let local = || PersistentSource::Local { path: path.clone() };
    set_up(PersistentSource::HostPath { path: path.clone(), kind: "".into() }, false);
    set_up(local(), true);
    assert_eq!((group(""), group("file")), (0, 0));
    set_up(local(), false);
    assert_eq!((group(""), group("file")), (4711, 4711));
    std::os::unix::fs::chown(disk.join("file"), None, Some(0)).unwrap();
    set_up(local(), false);
    assert_eq!(group("file"), 0, "what containers have made since stays theirs");
}
