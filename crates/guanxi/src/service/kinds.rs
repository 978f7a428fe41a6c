//! Kinds: list, create, get, change. A change holds from its answer on.

use guanxi_api::Name;
use guanxi_api::kinds::{ChangeKind, KindChanged, KindCreation, KindView, Kinds};
use guanxi_model::{Answer, Change, Error};

use super::{Caller, unexpected};

pub async fn list(caller: Caller) -> Result<Kinds, Error> {
    caller.meet().await?;
    caller.app.deployment.may_be_shown()?;
    let catalog = caller.catalog();
    let kinds = catalog.kinds(caller.tenant);
    let kinds = kinds.map(|kind| KindView::new(kind, caller.tenant, &catalog));
    Ok(Kinds { kinds: kinds.collect() })
}

pub async fn get(caller: Caller, name: Name<'_>) -> Result<KindView, Error> {
    caller.app.deployment.may_be_shown()?;
    caller.meet().await?;
    let kind = caller.kind(&name).await?;
    Ok(KindView::new(&kind, caller.tenant, &caller.catalog()))
}

pub async fn create(caller: Caller, creation: KindCreation) -> Result<KindChanged, Error> {
    let spec = Box::new(creation.into_spec()?);
    changed(&caller, Change::CreateKind { tenant: caller.tenant, spec }).await
}

/// Changes a kind's rules; what is fixed at creation is refused by name.
pub async fn change(caller: Caller, request: ChangeKind<'_>) -> Result<KindChanged, Error> {
    let kind = caller.kind(&request.name).await?.id;
    let patch = Box::new(request.amendment.into());
    changed(&caller, Change::SetKind { tenant: caller.tenant, kind, patch }).await
}

async fn changed(caller: &Caller, change: Change) -> Result<KindChanged, Error> {
    match caller.write_one(change).await? {
        (Answer::Kind(kind), token) => {
            let kind = KindView::new(&kind, caller.tenant, &caller.catalog());
            Ok(KindChanged { kind, token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}
