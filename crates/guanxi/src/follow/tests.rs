//! The thread that follows, where it is lost and where its work is over.

use super::*;

/// Longer than any machine takes.
const SOON: Duration = Duration::from_secs(30);

/// A standby whose primary nobody can reach.
fn standby(directory: &std::path::Path) -> (Arc<Engine>, PrimaryFollower) {
    let follow = Some("http://127.0.0.1:9".to_owned());
    let engine = Engine::open(Settings { follow, ..Settings::new(directory) }).unwrap();
    let client = Client::new("http://127.0.0.1:9").unwrap();
    (engine.clone(), PrimaryFollower { client, engine })
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_standby_whose_following_panics_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, follower) = standby(directory.path());
    follower.begin().unwrap();
    engine.crew().plant_panic("guanxi-follow");
    eventually("it is missed", || engine.crew().lost().is_some());
    assert_eq!(engine.crew().lost().unwrap().worker, "guanxi-follow");
    engine.close();
}

#[test]
fn trouble_with_the_primary_loses_nobody_and_is_noted() {
    let directory = tempfile::tempdir().unwrap();
    let (engine, follower) = standby(directory.path());
    follower.begin().unwrap();
    let trouble = || engine.status().following.and_then(|status| status.trouble);
    eventually("it is noted", || trouble().is_some());
    engine.close();
    assert_eq!(engine.crew().lost(), None);
}
