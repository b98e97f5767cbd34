use super::{core::*, root::mounts_at_or_below, *};
use crate::{
    beneath::{self, Removal, Slice},
    model::{PodKey, k8s},
    skips::{root, skip_without},
};
use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::statvfs::{FsFlags, statvfs},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::PathBuf,
    time::Duration,
};
use tempfile::TempDir;

mod claims;

/// A root of its own for one test; its mounts are gone at the end, whatever happens.
struct TestRoot {
    dir: TempDir,
    volumes: Volumes,
}

impl TestRoot {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::open(&dir.path().join("root"), Some(1 << 30)).unwrap();
        Self { dir, volumes }
    }

    fn host(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn pod_dir(&self) -> PathBuf {
        self.volumes.pod_dir(&uid()).unwrap()
    }

    fn empty_dir(&self, name: &str) -> PathBuf {
        self.pod_dir().join("volumes/kubernetes.io~empty-dir").join(name)
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let top = self.dir.path().canonicalize().unwrap();
        mounts_at_or_below(&top).unwrap().into_iter().map(|m| m.mount_point).collect()
    }
}

impl Drop for TestRoot {
    fn drop(&mut self) {
        for path in self.mounts().iter().rev() {
            umount2(path, MntFlags::MNT_DETACH).ok();
        }
    }
}

fn uid() -> PodUid {
    PodUid::from("0123abcd")
}

/// A pod whose only container mounts each of `volumes` at `/<name>`, with extra mount fields.
fn pod(volumes: &Value, mounts: &Value, fs_group: Option<i64>) -> k8s::Pod {
    serde_json::from_value(json!({
        "spec": {
            "securityContext": { "fsGroup": fs_group },
            "containers": [{ "name": "web", "volumeMounts": mounts }],
            "volumes": volumes,
        }
    }))
    .unwrap()
}

fn simple_pod(volume: &Value) -> k8s::Pod {
    pod(&json!([volume]), &json!([{ "name": "v", "mountPath": "/v" }]), None)
}

#[track_caller]
fn host_path(mount: &HostMount) -> &Path {
    match &mount.source {
        MountSource::Path(path) => Path::new(path),
        MountSource::Image { .. } => panic!("an image: {mount:?}"),
    }
}

fn mounts_of(root: &TestRoot, pod: &k8s::Pod) -> Result<Vec<HostMount>, VolumeError> {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    root.volumes.mounts_for(&MountInputs {
        pod,
        uid: &uid(),
        container: &container.name,
        mounts: container.volume_mounts.as_deref().unwrap_or_default(),
        expanded_sub_paths: &[],
        claimed: &ClaimedVolumes::new(),
    })
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Root in a container may lack this right.
fn can_mount() -> bool {
    let dir = tempfile::tempdir().unwrap();
    let tmpfs = Some("tmpfs");
    let result = mount(tmpfs, dir.path(), tmpfs, MsFlags::empty(), None::<&str>);
    match result {
        Ok(()) => umount2(dir.path(), MntFlags::empty()).unwrap(),
        Err(errno) => {
            return !skip_without(&[(false, &format!("root and the right to mount ({errno})"))]);
        }
    }
    true
}

#[test]
fn kinds_of_volumes() {
    let kind = |value: Value| kind_of_volume(&serde_json::from_value(value).unwrap());
    assert_eq!(kind(json!({"name": "v"})).unwrap(), VolumeKind::Disk);
    assert_eq!(kind(json!({"name": "v", "emptyDir": {}})).unwrap(), VolumeKind::Disk);
    assert_eq!(
        kind(json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}})).unwrap(),
        VolumeKind::Memory { size_limit: Some(64 << 20) }
    );
    assert_eq!(
        kind(json!({"name": "v", "hostPath": {"path": "/a", "type": "Socket"}})).unwrap(),
        VolumeKind::HostPath {
            path: "/a".to_owned(),
            kind: HostPathType::Socket,
            read_only: false
        }
    );
    assert_eq!(kind(json!({"name": "v", "image": {"reference": "c"}})).unwrap(), VolumeKind::Image);
    assert_eq!(
        kind(json!({"name": "v", "nfs": {"server": "nas", "path": "/srv"}})).unwrap(),
        VolumeKind::Nfs { export: "nas:/srv".to_owned(), read_only: false, options: Vec::new() }
    );
    let refused = kind(json!({"name": "v", "nfs": {"server": "-o", "path": "/srv"}}));
    assert_eq!(refused.unwrap_err().to_string(), "must be a host name or an IP address");
    for (value, text) in [
        (json!({"name": "v", "emptyDir": {"medium": "SSD"}}), "unknown storage medium"),
        (json!({"name": "v", "hostPath": {"path": "/a", "type": "Pipe"}}), "Pipe is an invalid"),
        (
            json!({"name": "v", "iscsi": {"iqn": "q", "lun": 0, "targetPortal": "p"}}),
            "no volume plugin matched",
        ),
    ] {
        let error = kind(value).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
}

#[test]
fn mounts_inside_a_volume_have_places_there() {
    let mounts = |list: &[(&str, &str)]| {
        let mounts = list.iter().map(|(name, path)| json!({"name": name, "mountPath": path}));
        mounts.collect::<Vec<_>>()
    };
    let with_sub_path = json!({"name": "conf", "mountPath": "/sub", "subPath": "a"});
    let spec = serde_json::from_value(json!({
        "initContainers": [{"name": "i", "volumeMounts": mounts(&[
            ("conf", "/conf"), ("a", "/conf/./deep//er/"), ("b", "/configuration"),
        ])}],
        "containers": [
            {"name": "m", "volumeMounts": mounts(&[
                ("conf", "/etc/app"), ("a", "/etc/app/certs"), ("b", "/etc/app/x/../y"),
                ("c", "/etc/app/../other"), ("d", "/etc/app/..data/e"), ("e", "/etc"),
            ])},
            {"name": "s", "volumeMounts": [with_sub_path, {"name": "a", "mountPath": "/sub/b"}]},
        ],
    }));
    let points = mount_points_in(&spec.unwrap(), "conf");
    assert_eq!(points, ["certs", "deep/er", "y"].map(PathBuf::from).into());
}

#[test]
fn small_rules() {
    assert_eq!(tmpfs_size([Some(100), None, Some(30)]), Some(30));
    assert_eq!(tmpfs_size([None, Some(0), None]), None);
    assert_eq!(with_group_access(0o755), 0o2775);
    assert_eq!(container_path("data"), "/data");
    assert_eq!(container_path("/data"), "/data");
    for name in ["a", "a.b", "..a", "0-1"] {
        assert!(is_component(name), "{name}");
    }
    for name in ["", ".", "..", "a/b", "/a", "a/", "./a"] {
        assert!(!is_component(name), "{name}");
    }
    check_sub_path("a/b..c/...").unwrap();
    assert_eq!(
        check_sub_path("/a").unwrap_err().to_string(),
        "error SubPath `/a` must not be an absolute path"
    );
    assert_eq!(
        check_sub_path("a/../..").unwrap_err().to_string(),
        "unable to provision SubPath `a/../..`: must not contain '..'"
    );
}

#[test]
fn a_disk_volume_lives_as_long_as_the_pod() {
    let root = TestRoot::new();
    let pod = simple_pod(&json!({"name": "v", "emptyDir": {}}));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let directory = root.empty_dir("v");
    assert_eq!(mode(&directory), 0o777);
    assert_eq!(mode(&root.pod_dir()), 0o750);
    assert!(root.pod_dir().join("plugins/kubernetes.io~empty-dir/v/ready").is_file());
    fs::write(directory.join("file"), "x").unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    assert_eq!(mode(&directory), 0o700, "what was set up is left as the containers made it");
    assert_eq!(fs::read(directory.join("file")).unwrap(), b"x");
    let mounts = mounts_of(&root, &pod).unwrap();
    assert_eq!(host_path(&mounts[0]), directory);
    assert_eq!(mounts[0].container_path, "/v");
    assert!(mounts[0].selinux_relabel && !mounts[0].readonly);

    assert_eq!(root.volumes.list_pods().unwrap(), [uid()]);
    fs::write(root.pod_dir().join("etc-hosts"), "").unwrap();
    teardown(&root.volumes, &uid()).unwrap();
    assert!(!directory.exists());
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(!root.pod_dir().exists());
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(root.volumes.list_pods().unwrap().is_empty());
}

#[test]
fn fs_group_owns_the_volume() {
    if skip_without(&[root()]) {
        return;
    }
    let root = TestRoot::new();
    let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
    let pod = pod(&json!([{"name": "v", "emptyDir": {}}]), &mounts, Some(4242));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let metadata = fs::metadata(root.empty_dir("v")).unwrap();
    assert_eq!(metadata.gid(), 4242);
    assert_eq!(mode(&root.empty_dir("v")), 0o2777);
}

#[test]
fn the_test_of_tmpfs_noswap_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let elsewhere = root.host("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let tmpfs = Some("tmpfs");
    let expected = mount(tmpfs, &elsewhere, tmpfs, MsFlags::empty(), Some("noswap")).is_ok();
    let mounts = root.mounts();
    assert_eq!(root.volumes.noswap_works().unwrap(), expected);
    assert_eq!(root.mounts(), mounts);
    let left: Vec<_> = fs::read_dir(root.host("root")).unwrap().map(|e| e.unwrap()).collect();
    assert_eq!(left.len(), 1, "only pods: {left:?}");
}

#[test]
fn a_memory_volume_is_a_tmpfs_of_the_smallest_size() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let volume = json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
    let pod = simple_pod(&volume);
    root.volumes.setup(&pod, &uid(), Some(512 << 10), Prepared::default()).unwrap();
    let directory = root.empty_dir("v");
    let mounted = mounts_at_or_below(&directory).unwrap();
    assert_eq!(mounted.len(), 1);
    assert_eq!(mounted[0].fs_type, "tmpfs");
    assert!(mounted[0].super_options.contains("size=512k"), "{}", mounted[0].super_options);
    assert_eq!(mode(&directory), 0o1777);
    fs::write(directory.join("file"), "x").unwrap();
    root.volumes.setup(&pod, &uid(), Some(512 << 10), Prepared::default()).unwrap();
    assert!(directory.join("file").exists());
    assert_eq!(root.mounts().len(), 1);

    // A reboot: the marker is there, the mount is not.
    umount2(&directory, MntFlags::empty()).unwrap();
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    assert_eq!(root.mounts().len(), 1);
    assert!(remove_pod_dir(&root.volumes, &uid()).is_err(), "it is still mounted");
    teardown(&root.volumes, &uid()).unwrap();
    assert!(root.mounts().is_empty());
    remove_pod_dir(&root.volumes, &uid()).unwrap();
}

#[test]
fn a_memory_volume_stays_when_an_edit_wants_it_on_disk() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let pod = |medium| simple_pod(&json!({"name": "v", "emptyDir": {"medium": medium}}));
    root.volumes.setup(&pod("Memory"), &uid(), None, Prepared::default()).unwrap();
    let file = root.empty_dir("v").join("file");
    fs::write(&file, "x").unwrap();
    root.volumes.setup(&pod(""), &uid(), None, Prepared::default()).unwrap();
    assert!(file.exists());
    assert_eq!(root.mounts(), [root.empty_dir("v")]);
    // As after a reboot.
    super::root::unmount(&root.empty_dir("v")).unwrap();
    root.volumes.setup(&pod(""), &uid(), None, Prepared::default()).unwrap();
    assert!(root.mounts().is_empty());
    assert_eq!(mode(&root.empty_dir("v")), 0o777);
    teardown(&root.volumes, &uid()).unwrap();
}

#[test]
fn only_mounted_volumes_are_set_up_and_every_failure_is_named() {
    let root = TestRoot::new();
    let missing = root.host("missing");
    let pod = pod(
        &json!([
            {"name": "unused", "hostPath": {"path": missing, "type": "Directory"}},
            {"name": "a", "hostPath": {"path": missing, "type": "Directory"}},
            {"name": "b", "emptyDir": {}},
            {"name": "c", "iscsi": {"iqn": "q", "lun": 0, "targetPortal": "p"}},
        ]),
        &json!([
            {"name": "a", "mountPath": "/a"},
            {"name": "b", "mountPath": "/b"},
            {"name": "c", "mountPath": "/c"},
        ]),
        None,
    );
    let failed = root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap_err();
    let messages: Vec<String> = failed.failures.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            format!(
                "MountVolume.SetUp failed for volume \"a\" : hostPath type check failed: {} is not a directory",
                missing.display()
            ),
            "MountVolume.SetUp failed for volume \"c\" : no volume plugin matched".to_owned(),
        ]
    );
    assert!(failed.to_string().contains("unmounted volumes=[a c]"), "{failed}");
    assert!(root.empty_dir("b").is_dir());
    assert!(!root.empty_dir("unused").exists());
    let prepared = Prepared { in_use: ["a".to_owned()].into(), ..Prepared::default() };
    let failed = root.volumes.setup(&pod, &uid(), None, prepared).unwrap_err();
    let failed: Vec<&str> = failed.failures.iter().map(|one| one.volume.as_str()).collect();
    assert_eq!(failed, ["c"], "what became of a path of the host concerns no container that runs");
}

#[test]
fn host_paths_are_what_they_are_said_to_be() {
    let root = TestRoot::new();
    let place = |name: &str| root.host(name).to_str().unwrap().to_owned();
    fs::create_dir(place("dir")).unwrap();
    fs::write(place("file"), "").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
    let check = |path: &str, kind: HostPathType| host_path::check(path, kind);
    use HostPathType as T;
    for (path, kind) in [
        (place("dir"), T::Directory),
        (place("dir"), T::DirectoryOrCreate),
        (place("file"), T::File),
        (place("file"), T::FileOrCreate),
        (place("socket"), T::Socket),
        ("/dev/null".to_owned(), T::CharDevice),
        (place("missing"), T::Unset),
        (place("new/dir"), T::DirectoryOrCreate),
        (place("new/file"), T::FileOrCreate),
    ] {
        check(&path, kind).unwrap_or_else(|err| panic!("{path} as {kind:?}: {err}"));
    }
    assert!(!root.host("missing").exists());
    assert_eq!(mode(&root.host("new/dir")), 0o755);
    assert_eq!(mode(&root.host("new/file")), 0o644);
    for (path, kind, expected) in [
        (place("file"), T::Directory, "a directory"),
        (place("file"), T::DirectoryOrCreate, "a directory"),
        (place("missing"), T::Directory, "a directory"),
        (place("dir"), T::File, "a file"),
        (place("dir"), T::FileOrCreate, "a file"),
        (place("missing"), T::File, "a file"),
        (place("file"), T::Socket, "a socket file"),
        (place("file"), T::CharDevice, "a character device"),
        ("/dev/null".to_owned(), T::BlockDevice, "a block device"),
    ] {
        let error = check(&path, kind).unwrap_err().to_string();
        assert_eq!(error, format!("hostPath type check failed: {path} is not {expected}"));
    }
    let error = check(&place("no/parent"), T::FileOrCreate).unwrap_err();
    assert!(matches!(error, VolumeError::Io { operation: "create", .. }));
}

#[test]
fn an_image_volume_needs_nothing_on_the_host() {
    let root = TestRoot::new();
    let pod = pod(
        &json!([{"name": "v", "image": {"reference": "r/models:1"}}]),
        &json!([
            {"name": "v", "mountPath": "/a"},
            {"name": "v", "mountPath": "/b", "subPath": "in/it"},
        ]),
        None,
    );
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let mounts = mounts_of(&root, &pod).unwrap();
    let source = |sub_path: &str| MountSource::Image {
        volume: "v".to_owned(),
        sub_path: sub_path.to_owned(),
    };
    assert_eq!(mounts[0].source, source(""));
    assert_eq!(mounts[1].source, source("in/it"));
    assert!(mounts.iter().all(|mount| mount.readonly && !mount.selinux_relabel));
    assert!(!root.pod_dir().exists());
    assert_eq!(root.volumes.empty_dirs(&pod, &uid()).unwrap(), []);
}

#[test]
fn sub_paths_are_made_pinned_and_taken_down() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let pod = pod(
        &json!([{"name": "v", "emptyDir": {}}]),
        &json!([
            {"name": "v", "mountPath": "/a", "subPath": "made/here"},
            {"name": "v", "mountPath": "etc/b", "subPath": "file", "readOnly": true},
            {"name": "v", "mountPath": "/c", "subPath": "link", "mountPropagation": "HostToContainer"},
            {"name": "v", "mountPath": "/d", "recursiveReadOnly": "IfPossible"},
        ]),
        None,
    );
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let directory = root.empty_dir("v");
    fs::write(directory.join("file"), "content").unwrap();
    fs::create_dir(directory.join("real")).unwrap();
    symlink("real", directory.join("link")).unwrap();

    let mounts = mounts_of(&root, &pod).unwrap();
    let pinned = root.pod_dir().join("volume-subpaths/v/web");
    assert_eq!(host_path(&mounts[0]), pinned.join("0"));
    assert_eq!(mode(&directory.join("made/here")), 0o777);
    assert_eq!(mounts[1].container_path, "/etc/b");
    assert!(mounts[1].readonly);
    assert_eq!(fs::read(host_path(&mounts[1])).unwrap(), b"content");
    assert_eq!(mounts[2].propagation, Propagation::HostToContainer);
    fs::write(directory.join("real/x"), "").unwrap();
    assert!(host_path(&mounts[2]).join("x").exists());
    assert_eq!(host_path(&mounts[3]), directory);
    assert_eq!(mounts[3].recursive_read_only, Some(RecursiveReadOnly::IfPossible));
    assert_eq!(root.mounts().len(), 3);

    // The next container instance: what still shows the same thing is kept, the rest is redone.
    fs::remove_file(directory.join("file")).unwrap();
    fs::create_dir(directory.join("file")).unwrap();
    mounts_of(&root, &pod).unwrap();
    assert_eq!(root.mounts().len(), 3);
    assert!(pinned.join("1").is_dir());

    teardown(&root.volumes, &uid()).unwrap();
    assert!(root.mounts().is_empty());
    assert!(!directory.exists());
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(!root.pod_dir().exists());
}

/// A disk that is mounted below the source later shows below the subPath, too, where mounts are
/// shared.
#[test]
fn what_the_node_mounts_below_a_sub_path_stays_mounted() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let (data, nothing) = (root.host("data"), None::<&str>);
    let late = data.join("media/late");
    fs::create_dir_all(&late).unwrap();
    mount(Some(&data), &data, nothing, MsFlags::MS_BIND, nothing).unwrap();
    // Shared with nothing but binds of itself, whatever the host's mounts are.
    for propagation in [MsFlags::MS_PRIVATE, MsFlags::MS_SHARED] {
        mount(nothing, &data, nothing, propagation, nothing).unwrap();
    }
    let volumes = json!([{"name": "v", "hostPath": {"path": data}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v", "subPath": "media"}]);
    let pod = pod(&volumes, &mounts, None);
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let shown = host_path(&mounts_of(&root, &pod).unwrap()[0]).join("late");
    mount(Some("tmpfs"), &late, Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
    fs::write(late.join("precious"), "").unwrap();
    assert!(shown.join("precious").exists(), "the container sees it");
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(late.join("precious").exists());
    assert_eq!(root.mounts(), [data, late]);
}

#[test]
fn sub_paths_cannot_leave_the_volume() {
    let root = TestRoot::new();
    let secret = root.host("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "").unwrap();
    let base = root.host("volume");
    fs::create_dir(&base).unwrap();
    symlink(&secret, base.join("absolute")).unwrap();
    symlink("../secret", base.join("upward")).unwrap();
    symlink("/proc/self/root", base.join("magic")).unwrap();
    symlink("nowhere", base.join("dangling")).unwrap();
    let volume = json!([{"name": "v", "hostPath": {"path": base}}]);
    for sub_path in
        ["absolute", "absolute/key", "absolute/new", "upward/new", "magic/tmp", "dangling/new"]
    {
        let mounts = json!([{"name": "v", "mountPath": "/v", "subPath": sub_path}]);
        let error = mounts_of(&root, &pod(&volume, &mounts, None)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with(
                "failed to create subPath directory for volumeMount \"v\" of container"
            ),
            "{sub_path}: {text}"
        );
        let cause = std::error::Error::source(&error).unwrap().to_string();
        let leads_out = cause == "the path leads out of the volume";
        assert_eq!(leads_out, sub_path != "dangling/new", "{sub_path}: {cause}");
    }
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1, "nothing was made outside");
    let mounts = json!([{"name": "w", "mountPath": "/v"}]);
    assert_eq!(
        mounts_of(&root, &pod(&volume, &mounts, None)).unwrap_err().to_string(),
        "cannot find volume \"w\" to mount into container \"web\""
    );
}

#[test]
fn expanded_sub_paths_win() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let mounts = json!([{"name": "v", "mountPath": "/v", "subPathExpr": "$(POD)"}]);
    let pod = pod(&json!([{"name": "v", "emptyDir": {}}]), &mounts, None);
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let inputs = MountInputs {
        pod: &pod,
        uid: &uid(),
        container: "web",
        mounts: container.volume_mounts.as_deref().unwrap(),
        expanded_sub_paths: &[Some("web-1".to_owned())],
        claimed: &ClaimedVolumes::new(),
    };
    root.volumes.mounts_for(&inputs).unwrap();
    assert!(root.empty_dir("v").join("web-1").is_dir());
}

fn teardown(volumes: &Volumes, uid: &PodUid) -> Result<(), VolumeError> {
    volumes.unmount(uid)?;
    let removal = volumes.delete(uid, &mut Slice::new(Duration::MAX))?;
    assert_eq!(removal, Removal::Complete);
    Ok(())
}

fn remove_pod_dir(volumes: &Volumes, uid: &PodUid) -> Result<(), VolumeError> {
    let removal = volumes.remove_pod_dir(uid, &mut Slice::new(Duration::MAX))?;
    assert_eq!(removal, Removal::Complete);
    Ok(())
}

#[test]
fn volumes_are_deleted_in_slices() {
    let root = TestRoot::new();
    let pod = simple_pod(&json!({"name": "v", "emptyDir": {}}));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    for n in 0..10 {
        fs::create_dir(root.empty_dir("v").join(n.to_string())).unwrap();
    }
    root.volumes.unmount(&uid()).unwrap();
    let mut calls = 1;
    while root.volumes.delete(&uid(), &mut Slice::new(Duration::ZERO)).unwrap()
        == Removal::Unfinished
    {
        calls += 1;
    }
    assert!(calls >= 10, "{calls}");
    assert!(!root.empty_dir("v").exists());
    remove_pod_dir(&root.volumes, &uid()).unwrap();
}

#[test]
fn nothing_is_deleted_behind_a_mount() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let data = precious(&root);
    let pod = simple_pod(&json!({"name": "v", "emptyDir": {}}));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    let bind = |target: &Path| {
        fs::create_dir_all(target).unwrap();
        mount(Some(&data), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    };
    // Inside the volume, at another volume's place, and anywhere else in the pod's directory.
    for target in [
        root.empty_dir("v").join("inside"),
        root.pod_dir().join("volumes/kubernetes.io~csi/pv/mount"),
        root.pod_dir().join("containers/web"),
    ] {
        bind(&target);
        // Even where the mount table didn't show it, deleting stops at it.
        let (parent, name) = (target.parent().unwrap(), target.file_name().unwrap());
        assert!(beneath::remove_tree(parent, name, &mut Slice::new(Duration::MAX)).is_err());
        let torn_down = teardown(&root.volumes, &uid());
        let removed = remove_pod_dir(&root.volumes, &uid());
        assert!(matches!(removed.unwrap_err(), VolumeError::StillMounted { .. }));
        assert_eq!(torn_down.is_err(), target.starts_with(root.empty_dir("v")));
        assert!(data.join("precious").exists());
        umount2(&target, MntFlags::empty()).unwrap();
    }
    // Data at the place of a volume that isn't ours: only a person can tell what they are.
    let left = root.pod_dir().join("volumes/kubernetes.io~csi/pv/mount");
    fs::write(left.join("file"), "").unwrap();
    let error = remove_pod_dir(&root.volumes, &uid()).unwrap_err().to_string();
    assert!(
        error.starts_with("orphaned pod \"0123abcd\" found, but failed to rmdir() volume at path "),
        "{error}"
    );
    assert!(left.join("file").exists());
    fs::remove_file(left.join("file")).unwrap();
    fs::remove_dir(left).unwrap();
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(data.join("precious").exists());
}

#[test]
fn the_root_becomes_shared_once() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    // A private mount stands for a host whose / isn't shared.
    let top = root.host("");
    let nothing = None::<&str>;
    mount(Some(&top), &top, nothing, MsFlags::MS_BIND, nothing).unwrap();
    mount(nothing, &top, nothing, MsFlags::MS_PRIVATE, nothing).unwrap();
    root.volumes.share_root().unwrap();
    root.volumes.share_root().unwrap();
    let at_root = mounts_at_or_below(&root.host("root")).unwrap();
    assert_eq!(at_root.len(), 1);
    assert!(at_root[0].shared);
    // Volumes below it come and go as ever.
    let pod = simple_pod(&json!({"name": "v", "emptyDir": {"medium": "Memory"}}));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    teardown(&root.volumes, &uid()).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
}

#[test]
fn a_uid_is_never_a_path() {
    let root = TestRoot::new();
    for bad in ["..", "", "a/b", "/etc"] {
        let uid = PodUid::from(bad);
        assert!(matches!(
            teardown(&root.volumes, &uid).unwrap_err(),
            VolumeError::InvalidName { .. }
        ));
        assert!(remove_pod_dir(&root.volumes, &uid).is_err());
    }
    let dots = simple_pod(&json!({"name": "..", "emptyDir": {}}));
    root.volumes.setup(&dots, &uid(), None, Prepared::default()).unwrap();
    assert!(!root.pod_dir().exists(), "a volume that nobody mounts");
}

#[test]
fn empty_dirs_are_found_where_they_are_made() {
    if skip_without(&[root()]) {
        return;
    }
    let root = TestRoot::new();
    let volumes = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "unused", "emptyDir": {} },
        { "name": "host", "hostPath": { "path": "/tmp" } },
    ]);
    let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
    let mounts = json!([mount("disk"), mount("memory"), mount("host")]);
    let pod = pod(&volumes, &mounts, None);
    let found = root.volumes.empty_dirs(&pod, &uid()).unwrap();
    let names: Vec<(&str, bool)> = found.iter().map(|v| (&*v.name, v.in_memory)).collect();
    assert_eq!(names, [("disk", false), ("memory", true)]);
    assert!(found.iter().all(|volume| !volume.path.exists()));
    root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
    assert!(found.iter().all(|volume| volume.path.is_dir()));
}

#[test]
fn only_marked_directories_are_ours() {
    let (root, web) = (TestRoot::new(), PodKey::new("default", "web"));
    let volumes = &root.volumes;
    assert_eq!(volumes.dir_owner(&uid()).unwrap(), DirOwner::Free);
    assert_eq!(volumes.claim(&uid(), &web, "me").unwrap(), Claim::Done);
    assert_eq!(volumes.claim(&uid(), &web, "me").unwrap(), Claim::Done);
    assert_eq!(owner_of(volumes, &uid()), "me");
    assert!(volumes.may_remove(&uid(), "me").unwrap());
    assert!(!volumes.may_remove(&uid(), "other").unwrap());
    assert!(matches!(volumes.claim(&uid(), &web, "other"), Err(VolumeError::NotOurs { .. })));

    let foreign = PodUid::from("foreign");
    let data = volumes.pod_dir(&foreign).unwrap().join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&data).unwrap();
    assert_eq!(volumes.dir_owner(&foreign).unwrap(), DirOwner::Unknown);
    assert!(!volumes.may_remove(&foreign, "me").unwrap());
    assert!(matches!(volumes.claim(&foreign, &web, "me"), Err(VolumeError::NotOurs { .. })));
    assert!(data.exists());
}

#[test]
fn a_directory_left_by_another_pod_with_the_uid_is_not_claimed() {
    let root = TestRoot::new();
    let long = "n".repeat(253);
    let (web, other) = (PodKey::new("default", "web"), PodKey::new("default", &long));
    root.volumes.claim(&uid(), &other, "me").unwrap();
    assert_eq!(root.volumes.claim(&uid(), &web, "me").unwrap(), Claim::LeftByAnother);
    let marker = root.pod_dir().join(".nodelet-owner");
    let target = fs::read_link(&marker).unwrap();
    assert!(target.as_os_str().len() < 60, "{target:?} fills a block of its own");
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert_eq!(root.volumes.claim(&uid(), &web, "me").unwrap(), Claim::Done);
    // A marker that names no pod is anybody's.
    fs::remove_file(&marker).unwrap();
    std::os::unix::fs::symlink("nodelet:me", &marker).unwrap();
    assert_eq!(root.volumes.claim(&uid(), &other, "me").unwrap(), Claim::Done);
}

fn owner_of(volumes: &Volumes, uid: &PodUid) -> String {
    match volumes.dir_owner(uid).unwrap() {
        DirOwner::Agent { owner, .. } => owner,
        other @ (DirOwner::Free | DirOwner::Unknown) => panic!("{other:?}"),
    }
}

#[test]
fn the_marker_is_removed_last() {
    let root = TestRoot::new();
    root.volumes.claim(&uid(), &PodKey::new("default", "web"), "me").unwrap();
    let marker = root.pod_dir().join(".nodelet-owner");
    let left = root.pod_dir().join("volumes/of-a-csi-driver/data");
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("file"), "").unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap_err();
    assert!(marker.is_symlink());
    fs::remove_file(left.join("file")).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(!root.pod_dir().exists());
}

#[test]
fn recorded_pods_are_marked_without_a_marker_or_with_an_old_one() {
    let root = TestRoot::new();
    let (unmarked, renamed, gone) = (uid(), PodUid::from("renamed"), PodUid::from("gone"));
    fs::create_dir_all(root.pod_dir().join("etc-hosts")).unwrap();
    let web = PodKey::new("default", "web");
    root.volumes.claim(&renamed, &web, "before").unwrap();
    let recorded = [&unmarked, &renamed, &gone].map(|uid| (uid, &web));
    root.volumes.mark_recorded(recorded.into_iter(), "me").unwrap();
    for uid in [&unmarked, &renamed] {
        assert_eq!(owner_of(&root.volumes, uid), "me");
    }
    assert_eq!(root.volumes.list_pods().unwrap().len(), 2);
}

#[test]
fn a_foreign_mount_at_the_place_of_a_new_empty_dir_is_refused() {
    if !can_mount() {
        return;
    }
    for volume in [
        json!({"name": "v", "emptyDir": {}}),
        json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
    ] {
        let root = TestRoot::new();
        let (data, directory) = (precious(&root), root.empty_dir("v"));
        fs::create_dir_all(&directory).unwrap();
        mount(Some(&data), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let pod = simple_pod(&volume);
        let refused = root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap_err();
        let refused = refused.failures[0].to_string();
        assert!(refused.contains("something else is mounted at"), "{refused}");
        umount2(&directory, MntFlags::empty()).unwrap();
        root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
        teardown(&root.volumes, &uid()).unwrap();
        assert!(data.join("precious").exists());
    }
}

/// A sidecar may mount a file system on the volume that it shares with other containers, which can
/// still be restarted.
#[test]
fn what_a_container_mounts_on_its_empty_dir_stays() {
    if !can_mount() {
        return;
    }
    for volume in [
        json!({"name": "v", "emptyDir": {}}),
        json!({"name": "v", "emptyDir": {"medium": "Memory"}}),
    ] {
        let root = TestRoot::new();
        let (pod, directory) = (simple_pod(&volume), root.empty_dir("v"));
        root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
        let (data, before) = (precious(&root), root.mounts());
        mount(Some(&data), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let with_mount = root.mounts();
        assert_eq!(with_mount.len(), before.len() + 1);
        root.volumes.setup(&pod, &uid(), None, Prepared::default()).unwrap();
        assert_eq!(root.mounts(), with_mount, "nothing is mounted or unmounted");
        let torn_down = teardown(&root.volumes, &uid()).unwrap_err();
        assert!(matches!(torn_down, VolumeError::StillMounted { .. }), "{torn_down}");
        umount2(&directory, MntFlags::empty()).unwrap();
        teardown(&root.volumes, &uid()).unwrap();
        assert!(data.join("precious").exists());
    }
}

/// A directory of the host with a file.
fn precious(root: &TestRoot) -> PathBuf {
    let data = root.host("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("precious"), "").unwrap();
    data
}

/// An NFS volume that nobody mounted is no volume, and nothing below its place is ever deleted.
#[test]
fn an_nfs_volume_is_there_when_it_is_mounted() {
    if !can_mount() {
        return;
    }
    let root = TestRoot::new();
    let pod = simple_pod(&json!({"name": "v", "nfs": {"server": "nas", "path": "/srv"}}));
    let directory = root.pod_dir().join("volumes/kubernetes.io~nfs/v");
    let wanted = NfsMount {
        volume: "v".to_owned(),
        export: "nas:/srv".to_owned(),
        directory: directory.clone(),
        read_only: false,
        options: Vec::new(),
    };
    let to_mount = || root.volumes.nfs_to_mount(&pod, &uid(), &ClaimedVolumes::new());
    assert_eq!(to_mount().unwrap(), [wanted]);
    let failure = |prepared| {
        let failed = root.volumes.setup(&pod, &uid(), None, prepared).unwrap_err();
        failed.failures[0].to_string()
    };
    let nfs_failures = NfsFailures::from([("v".to_owned(), "no server".to_owned())]);
    let text = failure(Prepared { nfs_failures, ..Prepared::default() });
    assert_eq!(text, "MountVolume.SetUp failed for volume \"v\" : no server");
    let text = failure(Prepared::default());
    assert_eq!(text, "MountVolume.SetUp failed for volume \"v\" : it is not mounted");
    assert_eq!(mounts_of(&root, &pod).unwrap_err().to_string(), "it is not mounted");

    // The nearest thing to NFS that every kernel has.
    mount(Some("x"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    let text = failure(Prepared::default());
    assert!(text.contains("something else is mounted at"), "{text}");
    assert!(to_mount().is_err());
    assert!(root.volumes.nfs_mounted(&uid()).is_err());
    umount2(&directory, MntFlags::empty()).unwrap();
    assert_eq!(root.volumes.nfs_mounted(&uid()).unwrap(), Vec::<PathBuf>::new());

    fs::write(directory.join("precious"), "").unwrap();
    teardown(&root.volumes, &uid()).unwrap();
    let left = remove_pod_dir(&root.volumes, &uid()).unwrap_err();
    assert!(matches!(left, VolumeError::OrphanVolume { .. }), "{left}");
    fs::remove_file(directory.join("precious")).unwrap();
    remove_pod_dir(&root.volumes, &uid()).unwrap();
    assert!(!root.pod_dir().exists());
}
