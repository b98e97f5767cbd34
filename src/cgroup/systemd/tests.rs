use super::{super::slice::Property, fake::FakeSystemd, *};
use tempfile::TempDir;

fn slice(name: &str) -> Slice {
    let property = |name, value| Property { name, value };
    Slice {
        name: name.to_owned(),
        made_with: vec![property("CPUAccounting", Value::Bool(true))],
        limits: vec![property("TasksMax", Value::Number(7))],
    }
}

async fn bench() -> (TempDir, FakeSystemd, Systemd) {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeSystemd::start(dir.path()).await;
    let systemd = Systemd::new(fake.sockets());
    (dir, fake, systemd)
}

/// Every connection is closed in the end.
async fn all_closed(fake: &FakeSystemd) {
    let closed = async {
        while fake.connections().0 > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), closed).await.expect("a connection stays open");
}

#[tokio::test]
async fn a_slice_is_made_once_and_then_changed() {
    let (_dir, fake, systemd) = bench().await;
    fake.jobs_take(3);
    systemd.ensure(&[slice("a.slice"), slice("a-b.slice")]).await.unwrap();
    assert_eq!(fake.unit("a-b.slice").as_deref(), Some("active"), "its job was waited for");
    systemd.ensure(&[slice("a.slice")]).await.unwrap();
    systemd.stop("a-b.slice").await.unwrap();
    assert_eq!(fake.unit("a-b.slice").as_deref(), Some("inactive"));
    systemd.stop("a-b.slice").await.unwrap();
    systemd.stop("never-seen.slice").await.unwrap();
    assert_eq!(
        fake.calls(),
        [
            "StartTransientUnit a.slice CPUAccounting=true TasksMax=7",
            "StartTransientUnit a-b.slice CPUAccounting=true TasksMax=7",
            "SetUnitProperties a.slice TasksMax=7",
            "StopUnit a-b.slice",
        ]
    );
    all_closed(&fake).await;
    assert_eq!(fake.connections().1, 5, "one for each piece of work");
}

#[tokio::test]
async fn a_slice_with_a_file_of_its_own_is_taken_over() {
    let (_dir, fake, systemd) = bench().await;
    fake.refuse("StartTransientUnit", UNIT_EXISTS, "Unit a.slice was already loaded.");
    systemd.ensure(&[slice("a.slice")]).await.unwrap();
    assert_eq!(fake.calls(), ["StartUnit a.slice", "SetUnitProperties a.slice TasksMax=7"]);
}

#[tokio::test]
async fn a_failed_slice_is_forgotten() {
    let (_dir, fake, systemd) = bench().await;
    fake.set_unit("a.slice", "failed");
    systemd.stop("a.slice").await.unwrap();
    assert_eq!(fake.calls(), ["ResetFailedUnit a.slice"]);
    assert_eq!(fake.unit("a.slice"), None);
    // Gone by itself between the look and the call.
    fake.set_unit("b.slice", "failed");
    fake.refuse("ResetFailedUnit", NO_SUCH_UNIT, "Unit b.slice not loaded.");
    systemd.stop("b.slice").await.unwrap();
    fake.set_unit("c.slice", "active");
    fake.refuse("StopUnit", NO_SUCH_UNIT, "Unit c.slice not loaded.");
    systemd.stop("c.slice").await.unwrap();
}

#[tokio::test]
async fn a_job_that_does_not_do_it_is_an_error() {
    let (_dir, fake, systemd) = bench().await;
    fake.jobs_end_in("failed");
    let error = systemd.ensure(&[slice("a.slice")]).await.unwrap_err();
    assert_eq!(error.to_string(), "systemd did not start it: its state is failed");
    fake.refuse("StartTransientUnit", "org.freedesktop.DBus.Error.InvalidArgs", "no such thing");
    let error = systemd.ensure(&[slice("b.slice")]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "systemd refuses StartTransientUnit: org.freedesktop.DBus.Error.InvalidArgs: no such thing"
    );
    all_closed(&fake).await;
}

#[tokio::test]
async fn work_goes_on_over_a_broken_connection() {
    for method in ["ListUnitsByNames", "StartTransientUnit"] {
        let (_dir, fake, systemd) = bench().await;
        fake.cut_in(method, 2);
        systemd.ensure(&[slice("a.slice")]).await.unwrap();
        assert_eq!(fake.connections().1, 3, "{method}");
        assert_eq!(fake.unit("a.slice").as_deref(), Some("active"));
        all_closed(&fake).await;
    }
    // The bus, about a systemd that is executing itself anew: it never comes back here.
    let (_dir, fake, _) = bench().await;
    let systemd = Systemd::with_deadline(fake.sockets(), Duration::from_secs(3));
    fake.refuse("ListUnitsByNames", "org.freedesktop.DBus.Error.NoReply", "went away");
    let error = systemd.ensure(&[slice("a.slice")]).await.unwrap_err();
    assert!(
        matches!(&error, SystemdError::Deadline { last: Some(last), .. } if last.contains("went away"))
    );
    assert!(fake.connections().1 > 1);
}

#[tokio::test]
async fn while_systemd_answers_others_a_turn_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fake = FakeSystemd::start(dir.path()).await;
    let systemd = Systemd::with_deadline(fake.sockets(), Duration::from_secs(4));
    let held = systemd.turn.acquire().await;
    let slices = [slice("a.slice")];
    let mut waits = pin!(systemd.ensure(&slices));
    for _ in 0..6 {
        assert!(tokio::time::timeout(Duration::from_secs(1), &mut waits).await.is_err());
        systemd.answered.fetch_add(1, Ordering::Relaxed);
    }
    drop(held);
    waits.await.unwrap();
}

#[tokio::test]
async fn a_hanging_systemd_costs_the_deadline_and_no_connection() {
    let (_dir, fake, _) = bench().await;
    let systemd = Systemd::with_deadline(fake.sockets(), Duration::from_secs(5));
    fake.hang_in("StartTransientUnit");
    let (first, second) = (slice("a.slice"), slice("b.slice"));
    let (first, second) = ([first], [second]);
    let begun = Instant::now();
    let (first, second) = tokio::join!(systemd.ensure(&first), systemd.ensure(&second));
    let text = "systemd has not answered for 5 s";
    assert_eq!(first.unwrap_err().to_string(), text);
    // Its wait for the turn counts.
    assert_eq!(second.unwrap_err().to_string(), text);
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    all_closed(&fake).await;
}

#[tokio::test]
async fn without_systemd_it_is_said_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = FakeSystemd::away(dir.path());
    let systemd = Systemd::new(fake.sockets());
    let error = systemd.stop("a.slice").await.unwrap_err();
    let at = dir.path().display();
    assert_eq!(
        error.to_string(),
        format!(
            "systemd can't be reached: {at}/private: No such file or directory (os error 2); \
             {at}/bus: No such file or directory (os error 2)"
        )
    );
    // Whoever has a socket will listen on it again.
    let listener = std::os::unix::net::UnixListener::bind(&fake.sockets().private).unwrap();
    drop(listener);
    let listens_again = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        std::fs::remove_file(&fake.sockets().private).unwrap();
        fake.listen(false);
    };
    let (done, ()) = tokio::join!(systemd.stop("a.slice"), listens_again);
    done.unwrap();
}

#[tokio::test]
async fn the_bus_is_the_second_way() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = FakeSystemd::away(dir.path());
    fake.listen(true);
    let systemd = Systemd::new(fake.sockets());
    systemd.ensure(&[slice("a.slice")]).await.unwrap();
    assert_eq!(fake.calls().len(), 1);
}

#[tokio::test]
async fn signals_that_nobody_asked_for_are_let_pass() {
    let (_dir, fake, systemd) = bench().await;
    fake.signal(500);
    fake.jobs_take(3);
    systemd.ensure(&[slice("a.slice")]).await.unwrap();
    systemd.stop("a.slice").await.unwrap();
    all_closed(&fake).await;
}
