//! Hydrate: everything that a feed needs about many objects, for one viewer.

use std::sync::Arc;

use guanxi_model::{
    EdgeKey, Error, Kind, KindId, NodeKey, NodeTypeId, SourceId, State, TallyRow, TargetId,
    TenantId, Which,
};

use super::{Reader, unreadable};

#[derive(Debug, Clone)]
pub struct HydrateQuery {
    pub tenant: TenantId,
    pub viewer: u64,
    pub objects: Vec<ReadObject>,
    pub kinds: Vec<Arc<Kind>>,
    pub tallies: Vec<Arc<Kind>>,
    pub reverse: Vec<Arc<Kind>>,
    pub object_type: NodeTypeId,
    pub author_type: NodeTypeId,
}

#[derive(Debug, Clone, Copy)]
pub struct ReadObject {
    pub id: u64,
    pub author: Option<u64>,
}

/// What is known of one object, in the order of the kinds asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hydrated {
    pub related: Vec<KindId>,
    pub pending: Vec<KindId>,
    pub reverse: Vec<KindId>,
    /// One number per kind of `tallies`.
    pub tallies: Vec<i64>,
}

/// Which of an object's two nodes a kind is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AboutNode {
    Object,
    Author,
}

impl AboutNode {
    /// The object where the types fit, else its author.
    fn find(
        query: &HydrateQuery,
        node_type: NodeTypeId,
        what: &str,
        kind: &Kind,
    ) -> Result<AboutNode, Error> {
        match node_type {
            of if of == query.object_type => Ok(AboutNode::Object),
            of if of == query.author_type => Ok(AboutNode::Author),
            _ => Err(Error::invalid(format!(
                "{what}: kind {} is about neither the objects' nor the authors' node type",
                kind.name
            ))),
        }
    }

    fn id(self, object: &ReadObject) -> Option<u64> {
        match self {
            AboutNode::Object => Some(object.id),
            AboutNode::Author => object.author,
        }
    }

    fn node(self, query: &HydrateQuery, object: &ReadObject) -> Option<NodeKey> {
        let node_type = match self {
            AboutNode::Object => query.object_type,
            AboutNode::Author => query.author_type,
        };
        self.id(object).map(|id| NodeKey { tenant: query.tenant, node_type, id })
    }
}

/// The tallies that a query asks for, and what each is about.
#[derive(Clone, Copy)]
struct TallyQuery<'a> {
    query: &'a HydrateQuery,
    abouts: &'a [AboutNode],
    counted: &'a [KindId],
}

impl HydrateQuery {
    /// The viewer's node type is what all kinds have as their source.
    fn check_viewer(&self) -> Result<(), Error> {
        let mut viewer_type = None;
        let sources = self.kinds.iter().map(|kind| (kind, kind.fixed.source_type));
        let targets = self.reverse.iter().map(|kind| (kind, kind.fixed.target_type));
        for (kind, node_type) in sources.chain(targets) {
            kind.require_edges()?;
            if *viewer_type.get_or_insert(node_type) != node_type {
                return Err(Error::invalid(format!(
                    "kind {} is not about a viewer of the same node type as the other kinds",
                    kind.name
                )));
            }
        }
        Ok(())
    }
}

impl Reader {
    pub fn hydrate(&self, query: &HydrateQuery) -> Result<Vec<Hydrated>, Error> {
        query.check_viewer()?;
        let abouts = |kinds: &[Arc<Kind>], what: &str, reverse: bool| {
            let about = |kind: &Arc<Kind>| {
                let fixed = &kind.fixed;
                let node_type = if reverse { fixed.source_type } else { fixed.target_type };
                AboutNode::find(query, node_type, what, kind)
            };
            kinds.iter().map(about).collect::<Result<Vec<AboutNode>, Error>>()
        };
        let kinds = abouts(&query.kinds, "kinds", false)?;
        let tallies = abouts(&query.tallies, "tallies", false)?;
        let reverse = abouts(&query.reverse, "reverse", true)?;
        for kind in &query.tallies {
            if !kind.fixed.counter && !kind.fixed.incoming_tally {
                let message = format!("tallies: kind {} keeps no incoming tally", kind.name);
                return Err(Error::invalid(message));
            }
        }
        let counted: Vec<KindId> = query.tallies.iter().map(|kind| kind.id).collect();
        self.prefetch(|wanted| {
            wanted.kinds.clone_from(&counted);
            for object in &query.objects {
                let ids = |about: &AboutNode| about.id(object);
                for (kind, id) in query.kinds.iter().zip(kinds.iter().map(ids)) {
                    wanted.edges.extend(id.map(|id| edge(query, kind, query.viewer, id)));
                }
                for (kind, id) in query.reverse.iter().zip(reverse.iter().map(ids)) {
                    wanted.edges.extend(id.map(|id| edge(query, kind, id, query.viewer)));
                }
                for about in [AboutNode::Object, AboutNode::Author] {
                    if tallies.contains(&about) {
                        wanted.targets.extend(about.node(query, object));
                    }
                }
            }
        })?;
        let object = |object: &ReadObject| {
            let mut hydrated = Hydrated {
                related: Vec::new(),
                pending: Vec::new(),
                reverse: Vec::new(),
                tallies: Vec::with_capacity(tallies.len()),
            };
            for (kind, about) in query.kinds.iter().zip(&kinds) {
                let Some(id) = about.id(object) else { continue };
                match self.state(&edge(query, kind, query.viewer, id))? {
                    Some(State::Live) => hydrated.related.push(kind.id),
                    Some(State::Pending) => hydrated.pending.push(kind.id),
                    _ => {}
                }
            }
            for (kind, about) in query.reverse.iter().zip(&reverse) {
                let Some(id) = about.id(object) else { continue };
                if self.is_live(&edge(query, kind, id, query.viewer))? {
                    hydrated.reverse.push(kind.id);
                }
            }
            let numbers = TallyQuery { query, abouts: &tallies, counted: &counted };
            self.hydrate_tallies(&numbers, object, &mut hydrated.tallies)?;
            Ok(hydrated)
        };
        query.objects.iter().map(object).collect()
    }

    /// A node's row has its numbers of all kinds, so each node is read once.
    fn hydrate_tallies(
        &self,
        wanted: &TallyQuery<'_>,
        object: &ReadObject,
        numbers: &mut Vec<i64>,
    ) -> Result<(), Error> {
        let TallyQuery { query, abouts, counted } = *wanted;
        let row = |about: AboutNode| match about.node(query, object) {
            Some(node) if abouts.contains(&about) => {
                self.snapshot.target_tallies(&node, counted).map_err(unreadable)
            }
            _ => Ok(TallyRow::default()),
        };
        let of_object = row(AboutNode::Object)?;
        let of_author = row(AboutNode::Author)?;
        for (kind, about) in query.tallies.iter().zip(abouts) {
            let which = if kind.fixed.counter { Which::Value } else { Which::Incoming };
            numbers.push(match about {
                AboutNode::Object => of_object.get(kind.id, which),
                AboutNode::Author => of_author.get(kind.id, which),
            });
        }
        Ok(())
    }
}

fn edge(query: &HydrateQuery, kind: &Kind, source: u64, target: u64) -> EdgeKey {
    EdgeKey {
        tenant: query.tenant,
        kind: kind.id,
        source: SourceId(source),
        target: TargetId(target),
    }
}
