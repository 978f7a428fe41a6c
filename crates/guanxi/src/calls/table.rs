//! Every call once: its name in metrics, logs and the OpenAPI document, where HTTP and gRPC find it,
//! and whether it changes something. Whoever has to know that asks here; the tests hold the table
//! against the router's document and the services' descriptors, so that no call can be missing.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::Method;

#[derive(Debug)]
pub struct CallEntry {
    pub name: &'static str,
    /// Method and route, as the router has them.
    http: Option<(Method, &'static str)>,
    /// Paths of the methods; some calls have two, for two shapes of a question.
    grpc: &'static [&'static str],
    /// Whether it may change something, so that a late one has an unknown outcome.
    pub writes: bool,
    /// Whether it writes and tells of each of many things that were sent, so that its answer is long.
    pub tells_long: bool,
}

type Place = Option<(Method, &'static str)>;

const fn read(name: &'static str, http: Place, grpc: &'static [&'static str]) -> CallEntry {
    CallEntry { name, http, grpc, writes: false, tells_long: false }
}

const fn write(name: &'static str, http: Place, grpc: &'static [&'static str]) -> CallEntry {
    CallEntry { name, http, grpc, writes: true, tells_long: false }
}

const fn write_many(name: &'static str, http: Place, grpc: &'static [&'static str]) -> CallEntry {
    CallEntry { name, http, grpc, writes: true, tells_long: true }
}

#[rustfmt::skip]
static CALLS: [CallEntry; 63] = [
    write("put_edge", Some((Method::PUT, "/v1/edges/{kind}/{source}/{target}")), &["/guanxi.v1.Edges/Put"]),
    write("delete_edge", Some((Method::DELETE, "/v1/edges/{kind}/{source}/{target}")), &["/guanxi.v1.Edges/Delete"]),
    read("get_edge", Some((Method::GET, "/v1/edges/{kind}/{source}/{target}")), &["/guanxi.v1.Edges/Get"]),
    write("approve_edge", Some((Method::POST, "/v1/edges/{kind}/{source}/{target}/approve")), &["/guanxi.v1.Edges/Approve"]),
    write("decline_edge", Some((Method::POST, "/v1/edges/{kind}/{source}/{target}/decline")), &["/guanxi.v1.Edges/Decline"]),
    write_many("batch_edges", Some((Method::POST, "/v1/edges/batch")), &["/guanxi.v1.Edges/Batch"]),
    read("list_outgoing", Some((Method::GET, "/v1/edges/{kind}/{id}/outgoing")), &["/guanxi.v1.Lists/Outgoing"]),
    read("list_incoming", Some((Method::GET, "/v1/edges/{kind}/{id}/incoming")), &["/guanxi.v1.Lists/Incoming"]),
    read("list_mutual", Some((Method::GET, "/v1/edges/{kind}/{id}/mutual")), &["/guanxi.v1.Lists/Mutual"]),
    read("list_common", Some((Method::GET, "/v1/edges/{kind}/{id}/common/{other}")), &["/guanxi.v1.Lists/Common"]),
    read("list_known", Some((Method::GET, "/v1/edges/{kind}/{id}/known/{other}")), &["/guanxi.v1.Lists/Known"]),
    read("scan_outgoing", Some((Method::GET, "/v1/edges/{kind}/{id}/outgoing/scan")), &["/guanxi.v1.Lists/ScanOutgoing"]),
    read("scan_incoming", Some((Method::GET, "/v1/edges/{kind}/{id}/incoming/scan")), &["/guanxi.v1.Lists/ScanIncoming"]),
    read("check", Some((Method::POST, "/v1/check")), &["/guanxi.v1.Reads/Check", "/guanxi.v1.Reads/CheckPairs"]),
    read("tallies", Some((Method::POST, "/v1/tallies")), &["/guanxi.v1.Reads/Tallies"]),
    read("hydrate", Some((Method::POST, "/v1/hydrate")), &["/guanxi.v1.Reads/Hydrate", "/guanxi.v1.Reads/HydrateMany"]),
    write("count", Some((Method::POST, "/v1/counters/{kind}/{id}")), &["/guanxi.v1.Counters/Count"]),
    write_many("batch_counters", Some((Method::POST, "/v1/counters/batch")), &["/guanxi.v1.Counters/Batch"]),
    read("list_groups", Some((Method::GET, "/v1/groups/{kind}/{source}")), &["/guanxi.v1.Groups/List"]),
    write("create_group", Some((Method::POST, "/v1/groups/{kind}/{source}")), &["/guanxi.v1.Groups/Create"]),
    write("rename_group", Some((Method::PATCH, "/v1/groups/{kind}/{source}/{group}")), &["/guanxi.v1.Groups/Rename"]),
    write("delete_group", Some((Method::DELETE, "/v1/groups/{kind}/{source}/{group}")), &["/guanxi.v1.Groups/Delete"]),
    write("add_member", Some((Method::PUT, "/v1/groups/{kind}/{source}/{group}/members/{target}")), &["/guanxi.v1.Groups/AddMember"]),
    write("drop_member", Some((Method::DELETE, "/v1/groups/{kind}/{source}/{group}/members/{target}")), &["/guanxi.v1.Groups/DropMember"]),
    read("get_node", Some((Method::GET, "/v1/nodes/{type}/{id}")), &["/guanxi.v1.Nodes/Get"]),
    write("put_node", Some((Method::PUT, "/v1/nodes/{type}/{id}")), &["/guanxi.v1.Nodes/Put"]),
    write("erase_node", Some((Method::DELETE, "/v1/nodes/{type}/{id}")), &["/guanxi.v1.Nodes/Erase"]),
    read("watch", Some((Method::GET, "/v1/watch")), &["/guanxi.v1.Watch/Watch"]),
    read("get_job", Some((Method::GET, "/v1/jobs/{job}")), &["/guanxi.v1.Nodes/GetJob"]),
    read("list_jobs", Some((Method::GET, "/v1/admin/jobs")), &["/guanxi.v1.Admin/ListJobs"]),
    read("list_kinds", Some((Method::GET, "/v1/admin/kinds")), &["/guanxi.v1.Admin/ListKinds"]),
    write("create_kind", Some((Method::POST, "/v1/admin/kinds")), &["/guanxi.v1.Admin/CreateKind"]),
    read("get_kind", Some((Method::GET, "/v1/admin/kinds/{name}")), &["/guanxi.v1.Admin/GetKind"]),
    write("change_kind", Some((Method::PATCH, "/v1/admin/kinds/{name}")), &["/guanxi.v1.Admin/ChangeKind"]),
    read("ship_log", Some((Method::GET, "/v1/admin/log")), &[]),
    write("acknowledge_log", Some((Method::POST, "/v1/admin/standbys/{standby}")), &[]),
    read("get_standby", Some((Method::GET, "/v1/admin/standby")), &["/guanxi.v1.Admin/GetStandby"]),
    write("promote", Some((Method::POST, "/v1/admin/promote")), &["/guanxi.v1.Admin/Promote"]),
    read("get_move", Some((Method::GET, "/v1/admin/move")), &[]),
    write("begin_move", Some((Method::POST, "/v1/admin/move")), &[]),
    write("confirm_move", Some((Method::PUT, "/v1/admin/move")), &[]),
    write("let_go_of_move", Some((Method::DELETE, "/v1/admin/move")), &[]),
    write("pause_for_move", Some((Method::POST, "/v1/admin/move/pause")), &[]),
    read("backup", Some((Method::GET, "/v1/admin/backup")), &["/guanxi.v1.Admin/Backup"]),
    write_many("import", Some((Method::POST, "/v1/admin/import")), &["/guanxi.v1.Admin/Import"]),
    read("get_import", Some((Method::GET, "/v1/admin/import/{import}")), &["/guanxi.v1.Admin/GetImport"]),
    read("export", Some((Method::GET, "/v1/admin/export")), &["/guanxi.v1.Admin/Export"]),
    write("run_audit", Some((Method::POST, "/v1/admin/audit")), &["/guanxi.v1.Admin/RunAudit"]),
    read("get_audit", Some((Method::GET, "/v1/admin/audit")), &["/guanxi.v1.Admin/GetAudit"]),
    read("list_dead_letters", Some((Method::GET, "/v1/admin/dead-letters")), &["/guanxi.v1.Admin/ListDeadLetters"]),
    read("get_dead_letter", Some((Method::GET, "/v1/admin/dead-letters/{letter}")), &["/guanxi.v1.Admin/GetDeadLetter"]),
    write("drop_dead_letter", Some((Method::DELETE, "/v1/admin/dead-letters/{letter}")), &["/guanxi.v1.Admin/DropDeadLetter"]),
    write("retry_dead_letter", Some((Method::POST, "/v1/admin/dead-letters/{letter}/retry")), &["/guanxi.v1.Admin/RetryDeadLetter"]),
    read("list_hot", Some((Method::GET, "/v1/admin/hot")), &["/guanxi.v1.Admin/ListHot"]),
    read("list_filters", Some((Method::GET, "/v1/admin/filters")), &["/guanxi.v1.Admin/ListFilters"]),
    read("healthz", Some((Method::GET, "/healthz")), &[]),
    read("readyz", Some((Method::GET, "/readyz")), &[]),
    read("metrics", Some((Method::GET, "/metrics")), &[]),
    read("openapi", Some((Method::GET, "/openapi.json")), &[]),
    read("docs", Some((Method::GET, "/docs")), &[]),
    read("health_check", None, &["/grpc.health.v1.Health/Check"]),
    read("health_watch", None, &["/grpc.health.v1.Health/Watch"]),
    read("reflection", None, &["/grpc.reflection.v1.ServerReflection/ServerReflectionInfo","/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]),
];

/// The call of this name, as the document has it.
pub fn named(name: &str) -> Option<&'static CallEntry> {
    CALLS.iter().find(|call| call.name == name)
}

/// The call of a route of the HTTP router; HEAD asks what GET does.
pub fn of_http(method: &Method, route: &str) -> Option<&'static CallEntry> {
    static BY_ROUTE: LazyLock<HashMap<&str, Vec<(&Method, &CallEntry)>>> = LazyLock::new(|| {
        let mut by_route = HashMap::<_, Vec<_>>::new();
        for call in &CALLS {
            if let Some((method, route)) = &call.http {
                by_route.entry(*route).or_default().push((method, call));
            }
        }
        by_route
    });
    let asked = if method == Method::HEAD { &Method::GET } else { method };
    let calls = BY_ROUTE.get(route)?;
    calls.iter().find(|(known, _)| *known == asked).map(|(_, call)| *call)
}

/// Whether this is a write that tells long. None of them has parameters in its route, which is thus
/// its path.
pub fn tells_long(method: &Method, path: &str, is_grpc: bool) -> bool {
    let call = if is_grpc { of_grpc(path) } else { of_http(method, path) };
    call.is_some_and(|call| call.tells_long)
}

/// The call of a gRPC method, by its path.
pub fn of_grpc(path: &str) -> Option<&'static CallEntry> {
    static BY_PATH: LazyLock<HashMap<&str, &CallEntry>> = LazyLock::new(|| {
        let paths = CALLS.iter().flat_map(|call| call.grpc.iter().map(move |path| (*path, call)));
        paths.collect()
    });
    BY_PATH.get(path).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;

    #[test]
    fn every_call_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = CALLS.iter().map(|call| call.name).collect();
        assert_eq!(names.len(), CALLS.len());
    }

    #[test]
    fn the_table_has_every_operation_of_the_document_and_no_other() {
        let document = crate::http::document();
        let served: BTreeSet<(String, String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                methods.as_object().unwrap().iter().map(|(method, operation)| {
                    let name = operation["operationId"].as_str().unwrap();
                    (name.to_owned(), method.to_uppercase(), path.clone())
                })
            })
            .collect();
        let listed: BTreeSet<_> = CALLS
            .iter()
            .filter_map(|call| {
                let (method, path) = call.http.as_ref()?;
                Some((call.name.to_owned(), method.to_string(), (*path).to_owned()))
            })
            .collect();
        assert_eq!(listed, served);
    }

    #[test]
    fn the_table_has_every_method_of_the_services_and_no_other() {
        let sets = [
            guanxi_api::proto::DESCRIPTORS,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut served = BTreeSet::new();
        for set in sets {
            for file in FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    for method in &service.method {
                        let (package, service) = (file.package(), service.name());
                        served.insert(format!("/{package}.{service}/{}", method.name()));
                    }
                }
            }
        }
        let listed = CALLS.iter().flat_map(|call| call.grpc.iter().map(|path| (*path).to_owned()));
        assert_eq!(listed.collect::<BTreeSet<_>>(), served);
    }

    #[test]
    fn a_get_changes_nothing_and_what_is_no_get_does_unless_it_is_known_to_ask() {
        for call in &CALLS {
            let Some((method, _)) = &call.http else {
                assert!(!call.writes, "{}", call.name);
                continue;
            };
            let asks =
                method == Method::GET || ["check", "tallies", "hydrate"].contains(&call.name);
            assert_eq!(call.writes, !asks, "{}", call.name);
        }
    }

    #[test]
    fn a_write_that_tells_long_is_told_by_its_path() {
        let long = CALLS.iter().filter(|call| call.tells_long);
        let names: Vec<&str> = long
            .map(|call| {
                let (method, route) = call.http.as_ref().unwrap();
                assert!(call.writes && !route.contains('{'), "{}", call.name);
                assert!(
                    tells_long(method, route, false) && !tells_long(&Method::GET, route, false)
                );
                assert!(call.grpc.iter().all(|path| tells_long(&Method::POST, path, true)));
                call.name
            })
            .collect();
        assert_eq!(names, ["batch_edges", "batch_counters", "import"]);
        assert!(!tells_long(&Method::PUT, "/v1/edges/follow/1/2", false));
    }

    #[test]
    fn a_call_is_found_by_either_protocol() {
        let path = "/v1/edges/{kind}/{source}/{target}";
        let name = |method: &Method, path| of_http(method, path).map(|call| call.name);
        assert_eq!(name(&Method::PUT, path), Some("put_edge"));
        assert_eq!(name(&Method::HEAD, path), Some("get_edge"));
        assert_eq!(name(&Method::POST, path), None);
        assert_eq!(name(&Method::GET, "/v1/edges/follow/1/2"), None, "a route, not a path");
        assert_eq!(of_grpc("/guanxi.v1.Reads/CheckPairs").map(|call| call.name), Some("check"));
        assert!(of_grpc("/guanxi.v1.Edges/put").is_none());
    }
}
