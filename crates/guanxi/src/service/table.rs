//! Every call once: its name in metrics, logs and the OpenAPI document, where each protocol finds it,
//! what its caller must be allowed, whether it changes something, its class under load, and whether
//! it lasts. Routers, limits, deadlines and tests ask here; a call that is not in the table is found
//! by no protocol, and one that is in it must have its function, or nothing compiles.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The methods of HTTP that calls have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Get,
    Put,
    Post,
    Patch,
    Delete,
}

impl Verb {
    /// The methods that ask for it.
    pub fn methods(self) -> &'static [&'static str] {
        match self {
            Verb::Get => &["GET", "HEAD"],
            Verb::Put => &["PUT"],
            Verb::Post => &["POST"],
            Verb::Patch => &["PATCH"],
            Verb::Delete => &["DELETE"],
        }
    }

    /// HEAD asks what GET does.
    pub fn named(name: &str) -> Option<Verb> {
        match name {
            "GET" | "HEAD" => Some(Verb::Get),
            "PUT" => Some(Verb::Put),
            "POST" => Some(Verb::Post),
            "PATCH" => Some(Verb::Patch),
            "DELETE" => Some(Verb::Delete),
            _ => None,
        }
    }
}

/// What a caller must be allowed. Whoever shows no credential is asked for none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Nothing: anybody may ask.
    Open,
    Read,
    Write,
    /// Lists of any depth.
    Scan,
    Watch,
    Import,
    Export,
    /// To create and change kinds.
    Kinds,
    /// To run the service.
    Operate,
}

/// Calls that are shed together when there is too much to do, those that are kept longest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Never shed.
    Health,
    Checks,
    Writes,
    Reads,
    Lists,
    Streams,
    Admin,
}

/// What of a call may take longer than a request usually does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lasting {
    Nothing,
    /// The answer is a stream.
    Answer,
    /// The body comes as long as its sender likes, if it keeps coming.
    Body,
    /// Questions and answers take turns, within the time of a usual request.
    Talk,
}

#[derive(Debug)]
pub struct CallEntry {
    pub call: Call,
    pub name: &'static str,
    /// Method and route.
    pub http: Option<(Verb, &'static str)>,
    /// Paths of the methods; some calls have two, for two shapes of a question.
    pub grpc: &'static [&'static str],
    /// The command.
    pub resp: Option<&'static str>,
    pub permission: Permission,
    /// Whether it may change something, so that a late one has an unknown outcome.
    pub writes: bool,
    /// Whether it writes and tells of each of many things that were sent, so that its answer is long.
    pub tells_long: bool,
    pub class: Class,
    pub lasting: Lasting,
}

impl Call {
    pub fn entry(self) -> &'static CallEntry {
        // A test holds the table to this order.
        &CALLS[self as usize]
    }
}

impl CallEntry {
    /// Whether its changes stand in records, so that they have an origin.
    pub fn changes_rows(&self) -> bool {
        let by_writers =
            matches!(self.permission, Permission::Write | Permission::Import | Permission::Kinds);
        self.writes && by_writers
    }
}

macro_rules! calls {
    ($(
        $call:ident $name:literal $does:ident($permission:ident, $class:ident $(, $lasting:ident)?)
        $(http $verb:ident $path:literal)? $(grpc $($method:literal)+)? $(resp $command:literal)?;
    )*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Call { $($call),* }

        pub static CALLS: &[CallEntry] = &[$(CallEntry {
            call: Call::$call,
            name: $name,
            http: first(&[$((Verb::$verb, $path))?]),
            grpc: &[$($($method),+)?],
            resp: first(&[$($command)?]),
            permission: Permission::$permission,
            writes: calls!(@writes $does),
            tells_long: calls!(@tells_long $does),
            class: Class::$class,
            lasting: lasting(&[$(Lasting::$lasting)?]),
        }),*];
    };
    (@writes reads) => { false };
    (@writes $writes:ident) => { true };
    (@tells_long writes_many) => { true };
    (@tells_long $does:ident) => { false };
}

const fn first<T: Copy>(given: &[T]) -> Option<T> {
    match given {
        [first, ..] => Some(*first),
        [] => None,
    }
}

const fn lasting(given: &[Lasting]) -> Lasting {
    match given {
        [lasting, ..] => *lasting,
        [] => Lasting::Nothing,
    }
}

#[rustfmt::skip]
calls! {
    PutEdge "put_edge" writes(Write, Writes) http Put "/v1/edges/{kind}/{source}/{target}" grpc "/guanxi.v1.Edges/Put" resp "GX.PUT";
    DeleteEdge "delete_edge" writes(Write, Writes) http Delete "/v1/edges/{kind}/{source}/{target}" grpc "/guanxi.v1.Edges/Delete" resp "GX.DEL";
    GetEdge "get_edge" reads(Read, Checks) http Get "/v1/edges/{kind}/{source}/{target}" grpc "/guanxi.v1.Edges/Get" resp "GX.GET";
    ApproveEdge "approve_edge" writes(Write, Writes) http Post "/v1/edges/{kind}/{source}/{target}/approve" grpc "/guanxi.v1.Edges/Approve" resp "GX.APPROVE";
    DeclineEdge "decline_edge" writes(Write, Writes) http Post "/v1/edges/{kind}/{source}/{target}/decline" grpc "/guanxi.v1.Edges/Decline" resp "GX.DECLINE";
    BatchEdges "batch_edges" writes_many(Write, Writes) http Post "/v1/edges/batch" grpc "/guanxi.v1.Edges/Batch";
    ListOutgoing "list_outgoing" reads(Read, Lists) http Get "/v1/edges/{kind}/{id}/outgoing" grpc "/guanxi.v1.Lists/Outgoing" resp "GX.LIST";
    ListIncoming "list_incoming" reads(Read, Lists) http Get "/v1/edges/{kind}/{id}/incoming" grpc "/guanxi.v1.Lists/Incoming" resp "GX.LIST";
    ListMutual "list_mutual" reads(Read, Lists) http Get "/v1/edges/{kind}/{id}/mutual" grpc "/guanxi.v1.Lists/Mutual" resp "GX.LIST";
    ListCommon "list_common" reads(Read, Lists) http Get "/v1/edges/{kind}/{id}/common/{other}" grpc "/guanxi.v1.Lists/Common" resp "GX.LIST";
    ListKnown "list_known" reads(Read, Lists) http Get "/v1/edges/{kind}/{id}/known/{other}" grpc "/guanxi.v1.Lists/Known" resp "GX.LIST";
    ScanOutgoing "scan_outgoing" reads(Scan, Lists) http Get "/v1/edges/{kind}/{id}/outgoing/scan" grpc "/guanxi.v1.Lists/ScanOutgoing";
    ScanIncoming "scan_incoming" reads(Scan, Lists) http Get "/v1/edges/{kind}/{id}/incoming/scan" grpc "/guanxi.v1.Lists/ScanIncoming";
    Check "check" reads(Read, Checks) http Post "/v1/check" grpc "/guanxi.v1.Reads/Check" "/guanxi.v1.Reads/CheckPairs" resp "GX.CHECK";
    Tallies "tallies" reads(Read, Reads) http Post "/v1/tallies" grpc "/guanxi.v1.Reads/Tallies" resp "GX.TALLY";
    Hydrate "hydrate" reads(Read, Checks) http Post "/v1/hydrate" grpc "/guanxi.v1.Reads/Hydrate" "/guanxi.v1.Reads/HydrateMany" resp "GX.HYDRATE";
    Count "count" writes(Write, Writes) http Post "/v1/counters/{kind}/{id}" grpc "/guanxi.v1.Counters/Count" resp "GX.COUNT";
    BatchCounters "batch_counters" writes_many(Write, Writes) http Post "/v1/counters/batch" grpc "/guanxi.v1.Counters/Batch";
    ListGroups "list_groups" reads(Read, Reads) http Get "/v1/groups/{kind}/{source}" grpc "/guanxi.v1.Groups/List";
    CreateGroup "create_group" writes(Write, Writes) http Post "/v1/groups/{kind}/{source}" grpc "/guanxi.v1.Groups/Create";
    RenameGroup "rename_group" writes(Write, Writes) http Patch "/v1/groups/{kind}/{source}/{group}" grpc "/guanxi.v1.Groups/Rename";
    DeleteGroup "delete_group" writes(Write, Writes) http Delete "/v1/groups/{kind}/{source}/{group}" grpc "/guanxi.v1.Groups/Delete";
    AddMember "add_member" writes(Write, Writes) http Put "/v1/groups/{kind}/{source}/{group}/members/{target}" grpc "/guanxi.v1.Groups/AddMember";
    DropMember "drop_member" writes(Write, Writes) http Delete "/v1/groups/{kind}/{source}/{group}/members/{target}" grpc "/guanxi.v1.Groups/DropMember";
    GetNode "get_node" reads(Read, Reads) http Get "/v1/nodes/{type}/{id}" grpc "/guanxi.v1.Nodes/Get";
    PutNode "put_node" writes(Write, Writes) http Put "/v1/nodes/{type}/{id}" grpc "/guanxi.v1.Nodes/Put";
    EraseNode "erase_node" writes(Write, Writes) http Delete "/v1/nodes/{type}/{id}" grpc "/guanxi.v1.Nodes/Erase";
    Watch "watch" reads(Watch, Streams, Answer) http Get "/v1/watch" grpc "/guanxi.v1.Watch/Watch";
    GetJob "get_job" reads(Read, Reads) http Get "/v1/jobs/{job}" grpc "/guanxi.v1.Nodes/GetJob";
    ListJobs "list_jobs" reads(Read, Admin) http Get "/v1/admin/jobs" grpc "/guanxi.v1.Admin/ListJobs";
    ListKinds "list_kinds" reads(Read, Reads) http Get "/v1/admin/kinds" grpc "/guanxi.v1.Admin/ListKinds";
    CreateKind "create_kind" writes(Kinds, Admin) http Post "/v1/admin/kinds" grpc "/guanxi.v1.Admin/CreateKind";
    GetKind "get_kind" reads(Read, Reads) http Get "/v1/admin/kinds/{name}" grpc "/guanxi.v1.Admin/GetKind";
    ChangeKind "change_kind" writes(Kinds, Admin) http Patch "/v1/admin/kinds/{name}" grpc "/guanxi.v1.Admin/ChangeKind";
    ShipLog "ship_log" reads(Operate, Admin, Answer) http Get "/v1/admin/log";
    AcknowledgeLog "acknowledge_log" writes(Operate, Writes) http Post "/v1/admin/standbys/{standby}";
    GetStandby "get_standby" reads(Operate, Admin) http Get "/v1/admin/standby" grpc "/guanxi.v1.Admin/GetStandby";
    Promote "promote" writes(Operate, Admin) http Post "/v1/admin/promote" grpc "/guanxi.v1.Admin/Promote";
    GetMove "get_move" reads(Operate, Admin) http Get "/v1/admin/move";
    BeginMove "begin_move" writes(Operate, Admin) http Post "/v1/admin/move";
    ConfirmMove "confirm_move" writes(Operate, Admin) http Put "/v1/admin/move";
    LetGoOfMove "let_go_of_move" writes(Operate, Admin) http Delete "/v1/admin/move";
    PauseForMove "pause_for_move" writes(Operate, Admin) http Post "/v1/admin/move/pause";
    Backup "backup" reads(Operate, Admin, Answer) http Get "/v1/admin/backup" grpc "/guanxi.v1.Admin/Backup";
    Import "import" writes_many(Import, Admin, Body) http Post "/v1/admin/import" grpc "/guanxi.v1.Admin/Import";
    GetImport "get_import" reads(Import, Admin) http Get "/v1/admin/import/{import}" grpc "/guanxi.v1.Admin/GetImport";
    Export "export" reads(Export, Streams, Answer) http Get "/v1/admin/export" grpc "/guanxi.v1.Admin/Export";
    RunAudit "run_audit" writes(Operate, Admin) http Post "/v1/admin/audit" grpc "/guanxi.v1.Admin/RunAudit";
    GetAudit "get_audit" reads(Operate, Admin) http Get "/v1/admin/audit" grpc "/guanxi.v1.Admin/GetAudit";
    ListDeadLetters "list_dead_letters" reads(Operate, Admin) http Get "/v1/admin/dead-letters" grpc "/guanxi.v1.Admin/ListDeadLetters";
    GetDeadLetter "get_dead_letter" reads(Operate, Admin) http Get "/v1/admin/dead-letters/{letter}" grpc "/guanxi.v1.Admin/GetDeadLetter";
    DropDeadLetter "drop_dead_letter" writes(Operate, Admin) http Delete "/v1/admin/dead-letters/{letter}" grpc "/guanxi.v1.Admin/DropDeadLetter";
    RetryDeadLetter "retry_dead_letter" writes(Operate, Admin) http Post "/v1/admin/dead-letters/{letter}/retry" grpc "/guanxi.v1.Admin/RetryDeadLetter";
    ListHot "list_hot" reads(Operate, Admin) http Get "/v1/admin/hot" grpc "/guanxi.v1.Admin/ListHot";
    ListFilters "list_filters" reads(Operate, Admin) http Get "/v1/admin/filters" grpc "/guanxi.v1.Admin/ListFilters";
    Healthz "healthz" reads(Open, Health) http Get "/healthz";
    Readyz "readyz" reads(Open, Health) http Get "/readyz";
    Metrics "metrics" reads(Operate, Health) http Get "/metrics";
    Openapi "openapi" reads(Open, Admin) http Get "/openapi.json";
    Docs "docs" reads(Open, Admin) http Get "/docs";
    HealthCheck "health_check" reads(Open, Health) grpc "/grpc.health.v1.Health/Check";
    HealthWatch "health_watch" reads(Open, Admin, Answer) grpc "/grpc.health.v1.Health/Watch";
    Reflection "reflection" reads(Open, Admin, Talk) grpc "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
}

/// The call of this name, as the document has it.
pub fn named(name: &str) -> Option<&'static CallEntry> {
    CALLS.iter().find(|call| call.name == name)
}

/// The call of a gRPC method, by its path.
pub fn of_grpc(path: &str) -> Option<&'static CallEntry> {
    static BY_PATH: LazyLock<HashMap<&str, &CallEntry>> = LazyLock::new(|| {
        let paths = CALLS.iter().flat_map(|call| call.grpc.iter().map(move |path| (*path, call)));
        paths.collect()
    });
    BY_PATH.get(path).copied()
}

/// The calls that have a command, each with it; some share one.
static OF_RESP: LazyLock<Vec<(&str, &CallEntry)>> = LazyLock::new(|| {
    CALLS.iter().filter_map(|call| call.resp.map(|command| (command, call))).collect()
});

/// The first call of a command, however it is written.
pub fn of_resp(name: &[u8]) -> Option<&'static CallEntry> {
    let mut calls = OF_RESP.iter();
    let of_name = calls.find(|(command, _)| name.eq_ignore_ascii_case(command.as_bytes()));
    of_name.map(|(_, call)| *call)
}

/// The entry of a call that has a command.
pub fn of_resp_call(call: Call) -> Option<&'static CallEntry> {
    OF_RESP.iter().find(|(_, entry)| entry.call == call).map(|(_, entry)| *entry)
}

/// Every command once, with its first call.
pub fn resp_commands() -> impl Iterator<Item = (&'static str, &'static CallEntry)> {
    let is_first =
        |at: usize, command: &str| OF_RESP[..at].iter().all(|(name, _)| *name != command);
    let commands = OF_RESP.iter().enumerate();
    commands.filter(move |(at, (command, _))| is_first(*at, command)).map(|(_, found)| *found)
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
        for (place, entry) in CALLS.iter().enumerate() {
            assert_eq!(entry.call as usize, place);
        }
    }

    #[test]
    fn the_table_has_every_operation_of_the_document_and_no_other() {
        let document = crate::wire::document();
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
                let (verb, path) = call.http?;
                Some((call.name.to_owned(), verb.methods()[0].to_owned(), path.to_owned()))
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
        for call in CALLS {
            let Some((verb, _)) = call.http else {
                assert!(!call.writes, "{}", call.name);
                continue;
            };
            let asks = verb == Verb::Get || ["check", "tallies", "hydrate"].contains(&call.name);
            assert_eq!(call.writes, !asks, "{}", call.name);
        }
    }

    #[test]
    fn what_tells_long_is_known_to() {
        let long = CALLS.iter().filter(|call| call.tells_long);
        let names: Vec<&str> = long.map(|call| call.name).collect();
        assert_eq!(names, ["batch_edges", "batch_counters", "import"]);
    }

    #[test]
    fn what_anybody_may_call_is_named_and_writes_nothing() {
        let open = CALLS.iter().filter(|call| call.permission == Permission::Open);
        let open: BTreeSet<&str> = open.map(|call| call.name).collect();
        let meant =
            ["docs", "health_check", "health_watch", "healthz", "openapi", "readyz", "reflection"];
        assert_eq!(open, BTreeSet::from(meant));
        for call in CALLS {
            let only_reads = matches!(
                call.permission,
                Permission::Open | Permission::Read | Permission::Scan | Permission::Watch
            );
            assert!(!(only_reads && call.writes), "{}", call.name);
        }
    }

    #[test]
    fn a_call_is_found_by_its_name_and_its_method() {
        assert_eq!(named("put_edge").map(|call| call.call), Some(Call::PutEdge));
        let of_pairs = of_grpc("/guanxi.v1.Reads/CheckPairs");
        assert_eq!(of_pairs.map(|call| call.name), Some("check"));
        assert!(of_grpc("/guanxi.v1.Edges/put").is_none());
        assert_eq!(of_resp(b"gx.Put").map(|call| call.name), Some("put_edge"));
        assert_eq!(of_resp_call(Call::ListKnown).map(|call| call.resp), Some(Some("GX.LIST")));
        assert!(of_resp(b"GX.SCAN").is_none() && of_resp_call(Call::Promote).is_none());
        let commands = resp_commands();
        assert!(resp_commands().all(|(command, _)| command.starts_with("GX.")));
        assert_eq!(commands.count(), 10);
    }
}
