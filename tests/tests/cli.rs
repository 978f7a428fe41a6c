//! Client commands on edges, lists, tallies, groups, kinds and nodes: what people read, what
//! programs read, and the exit codes that scripts rely on.

use guanxi_tests::{
    Cli, Server, assert_change, assert_keys, edge, node_run, nodes, put_followers, shared,
};
use serde_json::{Value, json};

/// Runs a command, whose words may be numbers: `run!(cli, "put", "follow", 1, 2)`.
macro_rules! run {
    ($cli:expr, $($word:expr),+ $(,)?) => {{
        let words = [$($word.to_string()),+];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        $cli.run(&words)
    }};
}

fn cli() -> (std::sync::Arc<Server>, Cli) {
    let server = shared();
    let cli = Cli::of(&server);
    (server, cli)
}

#[test]
fn an_edge_is_put_shown_and_deleted() {
    let (_server, cli) = cli();
    let [source, target] = nodes();
    let said = |ran: &guanxi_tests::Ran| ran.ok().stdout.trim_end().to_owned();
    let put = run!(cli, "put", "follow", source, target);
    assert_eq!(said(&put), format!("follow {source} → {target}: live"));
    let again = run!(cli, "put", "follow", source, target);
    assert!(said(&again).ends_with("live already; nothing changed"), "{}", again.stdout);
    let shown = run!(cli, "get", "follow", source, target).ok().stdout.clone();
    assert!(shown.starts_with(&format!("follow {source} → {target}: related\n")), "{shown}");
    assert!(shown.contains("\nreverse  not related\n"), "{shown}");
    let deleted = run!(cli, "delete", "follow", source, target);
    assert_eq!(said(&deleted), format!("follow {source} → {target}: removed"));
    let again = run!(cli, "delete", "follow", source, target);
    assert!(said(&again).ends_with("nothing changed"), "{}", again.stdout);
    let shown = run!(cli, "get", "follow", source, target).ok().stdout.clone();
    assert!(shown.starts_with(&format!("follow {source} → {target}: not related\n")), "{shown}");
}

#[test]
fn json_is_the_answer_of_the_service() {
    let (server, cli) = cli();
    let [source, target] = nodes();
    assert_change(&run!(cli, "put", "follow", source, target, "--json").json(), true, "live");
    assert_change(&run!(cli, "--json", "put", "follow", source, target).json(), false, "live");
    let shown = run!(cli, "get", "follow", source, target, "--json").json();
    assert_eq!(shown, *server.get(edge("follow", source, target)).ok());
    assert_change(&run!(cli, "delete", "follow", source, target, "--json").json(), true, "removed");
}

#[test]
fn every_reading_command_takes_a_token() {
    let (server, cli) = cli();
    let [source, target] = nodes();
    let token = server.put(edge("follow", source, target)).token();
    let (source, target) = (source.to_string(), target.to_string());
    let commands: [&[&str]; 9] = [
        &["get", "follow", &source, &target],
        &["list", "follow", &target, "incoming"],
        &["tally", "follow", &target],
        &["hydrate", &source, "--objects", &target, "--object-type", "user", "--kinds", "follow"],
        &["groups", "list", "follow", &source],
        &["nodes", "get", "user", &source],
        &["kinds", "list"],
        &["jobs", "list"],
        &["export"],
    ];
    for command in commands {
        cli.run(&[command, &["--at-least", &token]].concat()).expect(0);
        // That the server has seen it shows in what it says of one that is none.
        cli.run(&[command, &["--at-least", "none"]].concat()).expect_words(2, &["not a token"]);
        cli.run(&[command, &["--at-least", "no token"]].concat()).expect_words(2, &["a token is"]);
    }
}

#[test]
fn flags_of_put_become_fields() {
    let (server, cli) = cli();
    let [source, target, post, owner] = nodes();
    run!(cli, "groups", "create", "follow", source, "close friends").ok();
    let expires_at = "2100-01-31T12:00:00.000Z";
    run!(
        cli,
        "put",
        "follow",
        source,
        target,
        "--group",
        "close friends",
        "--data",
        "met 北京",
        "--expires-at",
        expires_at
    )
    .ok();
    let stands = server.get(edge("follow", source, target));
    let stands = stands.ok();
    assert_eq!(stands["group"], "close friends");
    assert_eq!(stands["data"], "met 北京");
    assert_eq!(stands["expires_at"], expires_at);
    run!(cli, "put", "like", source, post, "--owner", owner).ok();
    assert_eq!(server.get(edge("like", source, post)).ok()["owner"], owner.to_string());
}

#[test]
fn a_pending_edge_is_approved_or_declined() {
    let (_server, cli) = cli();
    let [source, target, other] = nodes();
    for source in [source, other] {
        let pending = run!(cli, "put", "follow", source, target, "--approval");
        assert!(pending.ok().stdout.ends_with(": pending\n"), "{}", pending.stdout);
    }
    let waiting = run!(cli, "list", "follow", target, "incoming", "--state", "pending", "--json");
    assert_eq!(waiting.ok().json_lines().len(), 2);
    assert_change(&run!(cli, "approve", "follow", source, target, "--json").json(), true, "live");
    let declined = run!(cli, "decline", "follow", other, target);
    assert!(declined.ok().stdout.ends_with(": removed\n"), "{}", declined.stdout);
    run!(cli, "decline", "follow", other, target).expect_words(1, &["not_pending"]);
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let (server, cli) = cli();
    let [a, b, c] = nodes();
    server.put(edge("block", a, b)).ok();
    let (a, b, c) = (a.to_string(), b.to_string(), c.to_string());
    let too_large = "18446744073709551616";
    let cases: &[(i32, &[&str], &[&str])] = &[
        // Refused by a rule, with a way on.
        (1, &["put", "follow", &a, &a], &["self_relation"]),
        (1, &["put", "follow", &b, &a], &["excluded", "guanxi delete block"]),
        (1, &["delete", "follow", &a, &c, "--strict"], &["not_related", "guanxi get"]),
        (1, &["put", "block", &a, &b, "--strict"], &["already_related"]),
        (1, &["put", "nope", &a, &b], &["unknown_kind", "guanxi kinds list"]),
        (1, &["put", "follow", &a, &c, "--group", "x"], &["unknown_group", "guanxi groups"]),
        (1, &["approve", "follow", &a, &c], &["not_pending"]),
        (1, &["nodes", "get", "nope", &a], &["not_found"]),
        // Wrong usage: of the shell's words, or of the rules of a kind.
        (2, &[], &["Usage"]),
        (2, &["fly"], &["fly"]),
        (2, &["put", "follow", &a], &["TARGET"]),
        (2, &["put", "follow", "0", &a], &["'0' is no id"]),
        (2, &["put", "follow", "-1", &a], &["-1"]),
        (2, &["put", "follow", "abc", &a], &["'abc' is no id"]),
        (2, &["put", "follow", &a, too_large], &["is no id"]),
        (2, &["get", "Follow", &a, &b], &["begins with a letter"]),
        (2, &["put", "follow", &a, &c, "--owner", &b], &["invalid_argument", "owner"]),
        (2, &["put", "follow", &a, &c, "--expires-at", "tomorrow"], &["RFC 3339"]),
        (2, &["put", "follow", &a, &c, "--group", "a/b"], &["group name"]),
        (2, &["put", "follow", &a, &c, "--data"], &["--data"]),
        (2, &["list", "follow", &a, "sideways"], &["outgoing"]),
        (2, &["list", "follow", &a, "outgoing", "--limit", "0"], &["--limit"]),
        (2, &["list", "like", &a, "mutual"], &["invalid_argument"]),
        (2, &["tally", "follow"], &["ID"]),
        (2, &["hydrate", &a, "--objects", "1:x"], &["'x' is no id"]),
        (2, &["kinds", "set", "follow"], &["no rule", "guanxi kinds set --help"]),
        (2, &["kinds", "set", "follow", "--outgoing-max", "many"], &["whole number"]),
        (2, &["serve", "--json"], &["client commands"]),
        (2, &["get", "follow", &a, &b, "--server", "https://127.0.0.1"], &["TLS"]),
        (2, &["get", "follow", &a, &b, "--server", "http://"], &["is no server"]),
        (2, &["completions", "cmd.exe"], &["bash"]),
        // Not reached: port 1 is nobody's.
        (3, &["get", "follow", &a, &b, "--server", "http://127.0.0.1:1"], &["guanxi serve"]),
        (3, &["watch", "--server", "127.0.0.1:1"], &["connection refused", "GUANXI_SERVER"]),
        (3, &["get", "follow", &a, &b, "--server", "http://nowhere.invalid"], &["nowhere.invalid"]),
    ];
    for (code, words, said) in cases {
        let ran = cli.run(words);
        ran.expect_words(*code, said);
        assert_eq!(ran.stdout, "", "{words:?}: errors go to stderr");
    }
    // Nothing of it was done.
    for (source, target) in [(&a, &a), (&b, &a), (&a, &c)] {
        let path = format!("/v1/edges/follow/{source}/{target}");
        assert_eq!(server.get(path).ok()["related"], false, "{source} → {target}");
    }
}

#[test]
fn an_error_is_json_for_programs() {
    let (_server, cli) = cli();
    let [node] = nodes();
    let refused = run!(cli, "put", "nope", node, node, "--json");
    refused.expect(1);
    let error: Value = serde_json::from_str(&refused.stderr).expect("one JSON value");
    assert_keys(&error["error"], &["code", "message", "next"]);
    assert_eq!(error["error"]["code"], "unknown_kind");
    assert!(error["error"]["next"].as_str().is_some_and(|next| next.contains("kinds list")));
}

#[test]
fn a_wrong_command_line_is_json_for_programs() {
    let (_server, cli) = cli();
    let cases: [(&[&str], &str); 5] = [
        (&["--json", "get", "follow", "1"], "<TARGET>"),
        (&["get", "follow", "1", "2", "--json", "--nope"], "--nope"),
        (&["list", "follow", "1", "sideways", "--json"], "sideways"),
        (&["nope", "--json"], "nope"),
        (&["--json"], "subcommand"),
    ];
    for (words, said) in cases {
        let ran = cli.run(words);
        ran.expect(2);
        assert_eq!(ran.stdout, "", "{words:?}");
        let error: Value = serde_json::from_str(&ran.stderr).expect("one JSON value");
        assert_keys(&error["error"], &["code", "message", "next"]);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains(said) && !message.starts_with("error"), "{words:?}: {message}");
        assert!(error["error"]["next"].as_str().is_some_and(|next| !next.is_empty()), "{words:?}");
    }
    let text = run!(cli, "get", "follow", "--", "--json");
    assert!(text.stderr.starts_with("error: "), "{text:?}");
    assert!(run!(cli, "--json", "--help").ok().stdout.contains("Usage"));
}

#[test]
fn lists_are_walked_as_far_as_asked() {
    let (server, cli) = cli();
    let [target] = nodes();
    let followers = node_run(2_500);
    put_followers(&server, "follow", target, &followers);
    let ids = |words: &[&str]| -> Vec<u64> {
        let id = target.to_string();
        let words = [&["list", "follow", &id, "incoming", "--json"], words].concat();
        let items = cli.run(&words).ok().json_lines();
        items.iter().map(|item| item["id"].as_str().unwrap().parse().unwrap()).collect()
    };
    assert_eq!(ids(&[]).len(), 20);
    assert_eq!(ids(&["--limit", "3"]).len(), 3);
    assert_eq!(ids(&["--limit", "1500"]).len(), 1_500, "more than a page");
    assert_eq!(ids(&["--limit", "9999"]).len(), 2_500, "no more than there are");
    let newest = ids(&["--all"]);
    let mut oldest = ids(&["--all", "--order", "oldest"]);
    oldest.reverse();
    assert_eq!(newest, oldest);
    for walk in [newest, ids(&["--all", "--limit", "700"]), ids(&["--all", "--scan"])] {
        let mut walk = walk;
        walk.sort_unstable();
        assert_eq!(walk, followers, "each once");
    }
    let text = run!(cli, "list", "follow", target, "incoming", "--limit", 2).ok().stdout.clone();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("id") && lines[0].ends_with("since"), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[3], "2 of 2500; --all shows the rest");
    let nobody = nodes::<1>()[0];
    assert_eq!(run!(cli, "list", "follow", nobody, "incoming").ok().stdout, "none\n");
    assert_eq!(run!(cli, "list", "follow", nobody, "incoming", "--json").ok().stdout, "");
}

#[test]
fn tallies_of_many_nodes_are_one_table() {
    let (server, cli) = cli();
    let [source, target, nobody] = nodes();
    server.put(edge("follow", source, target)).ok();
    let table = run!(cli, "tally", "follow", source, target, nobody).ok().stdout.clone();
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    let [source, target, nobody] = [source, target, nobody].map(|id| id.to_string());
    assert_eq!(
        rows,
        [
            vec!["id", "outgoing", "incoming", "pending_outgoing", "pending_incoming"],
            vec![&source, "1", "0", "0", "0"],
            vec![&target, "0", "1", "0", "0"],
            vec![&nobody, "0", "0", "0", "0"],
        ]
    );
    // More ids than one call takes.
    let many = node_run(1_200);
    let many: Vec<String> = many.iter().map(u64::to_string).collect();
    let words: Vec<&str> =
        ["tally", "view", "--json"].into_iter().chain(many.iter().map(String::as_str)).collect();
    let answer = cli.run(&words).json();
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 1_200);
    assert_eq!(results[1_199], json!({"id": many[1_199], "tallies": {"view": {"value": 0}}}));
}

#[test]
fn hydrate_shows_a_feed() {
    let (server, cli) = cli();
    let [viewer, author, post, other] = nodes();
    server.put(edge("like", viewer, post)).ok();
    server.put(edge("follow", viewer, author)).ok();
    let objects = format!("{post}:{author},{other}");
    let words = ["--kinds", "like,follow", "--tallies", "like,view", "--reverse", "follow"];
    let viewer = viewer.to_string();
    let words = [&["hydrate", &viewer, "--objects", &objects][..], &words].concat();
    let table = cli.run(&words).ok().stdout.clone();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[1].contains("like follow") && lines[1].ends_with("like 1, view 0"), "{table}");
    assert!(lines[2].contains(" - ") && lines[2].ends_with("like 0, view 0"), "{table}");
    let answer = cli.run(&[&words[..], &["--json"]].concat()).json();
    assert_eq!(answer["objects"][0]["related"], json!(["like", "follow"]));
    assert_eq!(answer["objects"][1]["id"], other.to_string());
}

#[test]
fn groups_are_kept_by_name() {
    let (_server, cli) = cli();
    let [source, target] = nodes();
    assert!(run!(cli, "groups", "list", "follow", source).ok().stdout.contains("no groups"));
    run!(cli, "groups", "create", "follow", source, "朋友").ok();
    run!(cli, "groups", "create", "follow", source, "a b%?#").ok();
    run!(cli, "groups", "create", "follow", source, "朋友").expect_words(1, &["conflict"]);
    run!(cli, "put", "follow", source, target).ok();
    let added = run!(cli, "groups", "add", "follow", source, "朋友", target, "--json").json();
    assert_eq!(added, json!({"name": "朋友", "size": 1}));
    // Columns are as wide as what a terminal shows: a Chinese character takes two places.
    let table = run!(cli, "groups", "list", "follow", source).ok().stdout.clone();
    assert_eq!(table, "group   size\n朋友       1\na b%?#     0\n");
    let filtered = run!(cli, "list", "follow", source, "outgoing", "--group", "朋友", "--json");
    assert_eq!(filtered.ok().json_lines().len(), 1);
    run!(cli, "groups", "rename", "follow", source, "朋友", "老朋友").ok();
    run!(cli, "groups", "remove", "follow", source, "老朋友", target).ok();
    run!(cli, "groups", "delete", "follow", source, "a b%?#").ok();
    let left = run!(cli, "groups", "list", "follow", source, "--json").json();
    assert_eq!(left, json!({"groups": [{"name": "老朋友", "size": 0}]}));
    run!(cli, "groups", "delete", "follow", source, "gone").expect_words(1, &["unknown_group"]);
}

#[test]
fn kinds_are_listed_created_and_changed() {
    let (_server, cli) = cli();
    let table = run!(cli, "kinds", "list").ok().stdout.clone();
    for words in ["user → post", "counter of post", "excludes follow"] {
        assert!(table.contains(words), "{words} in\n{table}");
    }
    let created = run!(
        cli,
        "kinds",
        "create",
        "cli.subscribe",
        "--source-type",
        "user",
        "--target-type",
        "channel",
        "--outgoing-max",
        2,
        "--no-incoming-list",
        "--excludes",
        "follow",
        "--json"
    );
    // Kinds may exclude only kinds of the same ends.
    created.expect_words(2, &["invalid_argument"]);
    let created = run!(
        cli,
        "kinds",
        "create",
        "cli.subscribe",
        "--source-type",
        "user",
        "--target-type",
        "channel",
        "--outgoing-max",
        2,
        "--no-incoming-list",
        "--json"
    )
    .json();
    assert_eq!(created["outgoing_max"], 2);
    assert_eq!(created["incoming_list"], false);
    assert_eq!(created["outgoing_list"], true);
    let [source, a, b, c] = nodes();
    for target in [a, b] {
        run!(cli, "put", "cli.subscribe", source, target).ok();
    }
    run!(cli, "put", "cli.subscribe", source, c)
        .expect_words(1, &["limit_reached", "guanxi kinds set"]);
    let set = run!(cli, "kinds", "set", "cli.subscribe", "--outgoing-max", "none", "--json").json();
    assert_eq!(set["outgoing_max"], Value::Null);
    assert_eq!(set["on_overload"], "refuse");
    let lenient = ["kinds", "set", "cli.subscribe", "--on-overload", "answer_default"];
    let table = cli.run(&lenient).ok().stdout.clone();
    assert!(table.contains("answers default"), "{table}");
    let words = ["kinds", "set", "cli.subscribe", "--on-overload", "guess"];
    cli.run(&words).expect_words(2, &["answer_default", "refuse"]);
    run!(cli, "put", "cli.subscribe", source, c).ok();
    let counter = run!(cli, "kinds", "create", "cli.share", "--target-type", "post", "--counter");
    assert!(counter.ok().stdout.contains("counter of post"), "{}", counter.stdout);
    let words = ["kinds", "create", "cli.share", "--target-type", "post", "--counter"];
    cli.run(&words).expect_words(1, &["conflict"]);
    let names = run!(cli, "kinds", "list", "--json").json();
    let names = names["kinds"].as_array().unwrap().iter();
    assert!(names.map(|kind| &kind["name"]).any(|name| name == "cli.subscribe"));
}

#[test]
fn nodes_are_set_and_erased() {
    let (server, cli) = cli();
    let [user, follower] = nodes();
    assert_eq!(run!(cli, "nodes", "get", "user", user).ok().stdout, "private  false\n");
    let set = run!(cli, "nodes", "set", "user", user, "--private", "true", "--json").json();
    assert_eq!(set, json!({"private": true}));
    let pending = run!(cli, "put", "follow", follower, user);
    assert!(pending.ok().stdout.ends_with(": pending\n"));
    let erased = run!(cli, "nodes", "erase", "user", user, "--json").json();
    assert_eq!(erased["state"], "done");
    assert_eq!(erased["receipt"]["edges_removed"], 1);
    assert_eq!(server.get(edge("follow", follower, user)).ok()["state"], Value::Null);
    let receipt = run!(cli, "nodes", "erase", "user", user).expect(0).stdout.clone();
    assert!(receipt.contains(&format!("user {user}")), "{receipt}");
    let started = run!(cli, "nodes", "erase", "user", user, "--no-wait", "--json").json();
    assert!(started["job"].as_str().is_some_and(|job| !job.is_empty()), "{started}");
}
