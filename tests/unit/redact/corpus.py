"""Secrets that `redact` must find, made anew from a seed: no line of this file is a key, and none of them ever was one.

A form is text with places for chance: {W36} is 36 letters and digits, and so on (`KINDS`). What must go stands between
« and »; where nothing does, all of it.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

KINDS = {
    "W": string.ascii_letters + string.digits,
    "b": string.ascii_letters + string.digits + "-_",
    "s": string.ascii_letters + string.digits + "+/",
    "x": "0123456789abcdef",
    "X": "0123456789ABCDEF",
    "U": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase + string.digits,
    "L": string.ascii_letters,
    "d": string.digits,
    "B": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "e": "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
    "p": string.ascii_letters + string.digits + "!#%*+-._~^",
}
_PLACE = re.compile(r"\{([A-Za-z])([0-9]+)\}|\{uuid\}")

# Keys that tell themselves apart, wherever they stand.
KEYS = """
aws id            AKIA{B16}
aws session id    ASIA{B16}
aws role id       AROA{B16}
aws bedrock       ABSK{s120}=
google api        AIza{b35}
google ai         AIza{b35}
google oauth      ya29.a0{b60}
google refresh    1//0{b60}
google client     GOCSPX-{b28}
azure client      {W3}8Q~{W34}
alibaba           LTAI{W20}
nats seed         SU{B56}
tencent           AKID{W32}
digitalocean      dop_v1_{x64}
digitalocean app  doo_v1_{x64}
digitalocean ref  dor_v1_{x64}
cloudflare origin v1.0-{x24}-{x146}
cloudflare user   cfut_{W40}
heroku            HRKU-AA{b58}
fly               fo1_{b43}
fly macaroon      fm2_{s120}
github            ghp_{W36}
github oauth      gho_{W36}
github user       ghu_{W36}
github server     ghs_{W36}
github refresh    ghr_{W76}
github fine       github_pat_{W22}_{W59}
gitlab            glpat-{b20}
gitlab routable   glpat-{b27}.01.{l9}
gitlab deploy     gldt-{b20}
gitlab runner     glrt-{b20}
gitlab runner 2   glrt-t1_{b27}.01.{l9}
gitlab runner reg GR1348941{b20}
gitlab trigger    glptt-{x40}
gitlab job        glcbt-64_{b20}
gitlab feed       glft-{b20}
gitlab mail       glimt-{b25}
gitlab agent      glagent-{b50}
gitlab oauth      gloas-{x64}
gitlab scim       glsoat-{b20}
gitlab flags      glffct-{b20}
atlassian         ATATT3{b180}={X8}
bitbucket         ATBB{W32}
bitbucket repo    ATCTT3{b180}={X8}
sonar             sqp_{x40}
sonar user        squ_{x40}
sourcegraph       sgp_{x40}
npm               npm_{W36}
pypi              pypi-AgEIcHlwaS5vcmc{b150}
rubygems          rubygems_{x48}
nuget             oy2{l43}
clojars           CLOJARS_{l60}
docker hub        dckr_pat_{b27}
docker org        dckr_oat_{b27}
artifactory       AKCp{W69}
artifactory ref   cmVmd{W59}
circleci          CCIPAT_{W22}_{x40}
buildkite         bkua_{x40}
netlify           nfp_{W36}
vercel            vcp_{W56}
vercel blob       vercel_blob_rw_{W16}_{W30}
render            rnd_{W28}
pulumi            pul-{x40}
terraform cloud   {W14}.atlasv1.{b67}
tailscale         tskey-auth-{W12}CNTRL-{W32}
contentful        CFPAT-{b43}
openai            sk-{W20}T3BlbkFJ{W20}
openai project    sk-proj-{b74}T3BlbkFJ{b74}
openai service    sk-svcacct-{b58}T3BlbkFJ{b58}
anthropic         sk-ant-api03-{b93}AA
anthropic admin   sk-ant-admin01-{b93}AA
anthropic oauth   sk-ant-oat01-{b93}AA
openrouter        sk-or-v1-{x64}
deepseek          sk-{x32}
langfuse          sk-lf-{uuid}
groq              gsk_{W52}
replicate         r8_{W37}
perplexity        pplx-{W48}
xai               xai-{W80}
fireworks         fw_{W24}
together          tgp_v1_{b43}
pinecone          pcsk_{W6}_{W62}
langsmith         lsv2_pt_{x32}_{x10}
nvidia            nvapi-{b64}
hugging face      hf_{L34}
hugging face org  api_org_{L34}
elevenlabs        sk_{x48}
databricks        dapi{x32}
databricks 2      dapi{x32}-2
planetscale       pscale_tkn_{b43}
planetscale pw    pscale_pw_{b43}
planetscale oauth pscale_oauth_{b43}
supabase          sbp_{x40}
supabase secret   sb_secret_{b31}
mongodb atlas     mdb_sa_sk_{b40}
neon              napi_{l64}
airtable          pat{W14}.{x64}
stripe            sk_live_{W24}
stripe long       sk_live_51{W97}
stripe test       sk_test_{W24}
stripe limited    rk_live_{W24}
stripe webhook    whsec_{W32}
square            sq0atp-{b22}
square secret     sq0csp-{b43}
square new        EAAA{b60}
facebook          EAAC{W60}
shopify           shpat_{x32}
shopify custom    shpca_{x32}
shopify private   shppa_{x32}
shopify shared    shpss_{x32}
shippo            shippo_live_{x40}
razorpay          rzp_live_{W14}
plaid             access-production-{uuid}
hubspot           pat-na1-{uuid}
braintree         access_token$production${l16}${x32}
slack bot         xoxb-{d12}-{d13}-{W24}
slack user        xoxp-{d12}-{d12}-{d13}-{x32}
slack app         xapp-1-A{U10}-{d13}-{x64}
slack refresh     xoxe-1-{U146}
slack refreshed   xoxe.xoxp-1-{U163}
slack legacy      xoxa-2-{W48}
slack session     xoxs-{d12}-{d12}-{d12}-{x10}
slack client      xoxc-{d12}-{d12}-{d12}-{x64}
slack cookie      xoxd-{W120}
telegram          {d10}:AA{b33}
discord           M{W23}.{b6}.{b27}
discord new       M{W25}.G{b5}.{b38}
sendgrid          SG.{b22}.{b43}
mailgun           key-{x32}
mailgun new       {x32}-{x8}-{x8}
mailchimp         {x32}-us19
brevo             xkeysib-{x64}-{W16}
twilio            SK{x32}
resend            re_{W8}_{W24}
new relic         NRAK-{U27}
new relic browser NRJS-{x19}ab
new relic insert  NRII-{b32}
grafana           glsa_{W32}_{x8}
grafana cloud     glc_{s120}=
grafana old       eyJrIjoi{W90}
sentry            sntrys_eyJpYXQiO{s120}_{s43}
sentry user       sntryu_{x64}
honeycomb         hcaik_{l58}
posthog           phx_{W43}
dynatrace         dt0c01.{U24}.{U64}
linear            lin_api_{W40}
linear oauth      lin_oauth_{x64}
notion            secret_{W43}
notion new        ntn_{d11}{W35}
figma             figd_{b40}
typeform          tfp_{b59}
postman           PMAK-{x24}-{x34}
readme            rdme_{l70}
launchdarkly      sdk-{uuid}
vault             hvs.{b95}
vault batch       hvb.{b150}
vault old         s.{W23}7
doppler           dp.pt.{W43}
doppler service   dp.st.prd.{W43}
1password         ops_eyJ{W260}
1password key     A3-{U6}-{U11}-{U5}-{U5}-{U5}
age               AGE-SECRET-KEY-1{e58}
openshift         sha256~{b43}
mapbox            sk.eyJ{W60}.{W22}
jwt               eyJhbGciOiJIUzI1NiJ9.eyJ{b60}.{b43}
jwt unsigned      eyJhbGciOiJub25lIn0.eyJ{b60}.
"""

# Keys of issuers that no rule knows: only chance tells, and not of every one of them.
UNKNOWN = """
letters           {W40}
short             {W24}
with signs        {b43}
base64            {s43}=
with a name       acmecorp-{W32}
"""

# Secrets that only their place tells.
PLACES = r"""
aws_secret_access_key = «{s40}»
AWS_SECRET_ACCESS_KEY=«{s40}» aws s3 ls
"SecretAccessKey": "«{s40}»",
aws configure set aws_secret_access_key «{s40}»
aws_session_token=«FwoGZXIvYXdzE{s300}==»
https://b.s3.amazonaws.com/k?X-Amz-Algorithm=A&X-Amz-Signature=«{x64}»
{"type": "service_account", "private_key_id": "«{x40}»", "client_email": "a@b"}
{"private_key": "-----BEGIN PRIVATE KEY-----\n«{s64}»\n«{s64}»\n-----END PRIVATE KEY-----\n", "client_id": "1"}
{\"private_key\": \"-----BEGIN PRIVATE KEY-----\\n«{s64}»\\n«{s64}»\\n-----END PRIVATE KEY-----\\n\"}
DefaultEndpointsProtocol=https;AccountName=shop;AccountKey=«{s86}==»;EndpointSuffix=core.windows.net
Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=«{s43}=»
https://shop.blob.core.windows.net/c?sv=2024-11-04&se=2026-01-01&sr=c&sp=rl&sig=«{W40}%2B{W2}%3D»
AZURE_CLIENT_SECRET=«{p40}»
az login --service-principal -u app -p «{p34}» --tenant t
TWILIO_AUTH_TOKEN=«{x32}»
client = Client("AC{x32}", auth_token="«{x32}»")
curl -u AC{x32}:«{x32}» https://api.twilio.com/2010-04-01/Accounts
DD_API_KEY=«{x32}»
DD_APP_KEY=«{x40}»
datadog_api_key: «{x32}»
CLOUDFLARE_API_TOKEN=«{b40}»
CLOUDFLARE_API_KEY=«{x37}»
HEROKU_API_KEY=«{uuid}»
MAILGUN_API_KEY=«{x32}»
FASTLY_API_TOKEN=«{b32}»
ALGOLIA_ADMIN_KEY=«{x32}»
WANDB_API_KEY=«{x40}»
COHERE_API_KEY=«{W40}»
MISTRAL_API_KEY=«{W32}»
SECRET_KEY_BASE=«{x128}»
DJANGO_SECRET_KEY='«django-insecure-{p50}»'
encryption_key = "«{x64}»"
WAL_AGENT_ENCRYPTION_KEY=«{x64}»
WAL_AGENT_KEY: «{x64}»
https://hooks.slack.com/services/«T{U10}/B{U10}/{W24}»
https://hooks.slack.com/workflows/«T{U10}/A{U10}/{d18}/{W24}»
https://discord.com/api/webhooks/«{d18}/{b68}»
https://discordapp.com/api/v10/webhooks/«{d18}/{b68}»
https://acme.webhook.office.com/webhookb2/«{uuid}@{uuid}»/IncomingWebhook/«{x32}/{uuid}»
https://api.telegram.org/bot«{d10}:AA{b33}»/sendMessage
https://chat.googleapis.com/v1/spaces/AAAA/messages?«key=AIza{b35}&token={b43}»
tgram://«{d10}:AA{b33}/12315544»
tgram://«{d10}:AA{b33}»/
slack://«T{U8}/B{U8}/{W24}/#general»
slack://«xoxb-{d12}-{d13}-{W24}/#nuxref»
discord://«{d18}/{b68}»
mailto://«me:{p16}@example.com»
mailtos://«me:{p16}@smtp.example.com?from=a»
ntfy://«{l20}»
ntfys://«tk_{l29}@ntfy.example.com/alerts»
gotify://«host/{W15}»
pover://«{W30}@{W30}»
json://«me:{p12}@host/hook»
msteams://«{uuid}@{uuid}/{x32}/{uuid}»
urls = ["tgram://«{d10}:AA{b33}/1»", "ntfy://«{l20}»"]
postgres://me:«{p20}»@db:5432/shop
postgresql+asyncpg://me:«{W12}@{W8}»@db/shop
mysql://root:«{p12}»@127.0.0.1:3306/x
mongodb+srv://me:«{p20}»@c0.mongodb.net/?retryWrites=true
redis://:«{p20}»@cache:6379/0
amqp://me:«{p20}»@mq/%2f
DATABASE_URL=postgres://me:«{p20}»@db/shop npm start
Server=db;Database=shop;User Id=sa;Password=«{p16}»;Encrypt=True
host=db user=me password=«{p16}» dbname=shop
jdbc:postgresql://db/shop?user=me&password=«{W16}»&ssl=true
git clone https://me:«{W20}»@git.example.com/a/b
git clone https://«{W40}»@git.example.com/a/b
git clone https://oauth2:«{W20}»@gitlab.com/a/b.git
git remote set-url origin https://x-access-token:«{W40}»@github.com/a/b
https://«{x32}»@o1.ingest.sentry.io/12
ssh://me:«{p16}»@host/x
ftp://me:«{p16}»@host/x
rsync://me:«{p16}»@host/mod
http://me:«{p16}»@proxy:3128
s3://AKIA{B16}:«{s20}»@bucket/x
db.example.com:5432:shop:me:«{p16}»
*:*:*:postgres:«{p16}»
machine api.example.com login me password «{p16}»
machine h\n  login me\n  password «{p16}»
Authorization: Bearer «{b40}»
authorization: basic «{s40}==»
-H "Authorization: token «{W40}»"
-H 'Authorization: Bot «M{W23}.{b6}.{b27}»'
-H 'X-Api-Key: «{l20}»'
{"Authorization": "Bearer «{b40}»"}
{\"Authorization\": \"Bearer «{b40}»\"}
headers["Authorization"] = "Bearer «{b40}»"
req.Header.Set("Authorization", "Bearer «{b40}»")
Proxy-Authorization: Basic «{s24}»
PRIVATE-TOKEN: «{W20}»
JOB-TOKEN: «{W20}»
DD-API-KEY: «{x32}»
x-goog-api-key: «{b39}»
Cookie: sid=«{x32}»; _gitlab_session=«{x32}»
Set-Cookie: session=«{b60}»; Path=/; HttpOnly
curl -b "session=1" -H "cookie: a=«{W20}»; b=«{W20}»" https://h
curl -u me:«{p12}» https://h
curl -sSume:«{W12}» https://h
curl --user 'me:«{p12}»' https://h
curl --user=me:«{p12}» https://h
curl -x http://p:1 --proxy-user me:«{p12}» https://h
curl https://h \\\n  -u me:«{p12}»
http -a me:«{W12}» https://h
wget --http-password=«{p12}» https://h
mysql -h db -u root -p«{W12}» shop
mysqldump -uroot -p'«{W12}' shop
sshpass -p «{p12}» ssh h
sshpass -p'«{W12}»' ssh h
docker login -u me -p «{W12}» ghcr.io
echo «{W16}» | docker login --password-stdin
echo "«{W16}»" | sudo -S apt update
redis-cli -h c -a «{W12}» ping
mongosh -u me -p «{W12}» h/db
openssl rsa -passin pass:«{W12}» -in k
ldapsearch -x -D cn=me -w «{W12}» -b dc=x
PGPASSWORD=«{p12}» psql -h db
MYSQL_PWD=«{W12}» mysql
cmd --password «{p12}» -v
cmd --password=«{p12}» -v
cmd -password «{W12}» -v
cmd --api-key «{W12}» -v
cmd --auth-token "«{p12}»" -v
cmd --client-secret='«{p12}»' -v
["cmd", "--password", "«{p12}»", "-v"]
oc login --token=«{W43}»
kubectl create secret generic s --from-literal=password=«{p12}»
kubectl config set-credentials me --token=«{W40}»
    token: «eyJhbGciOiJSUzI1NiJ9.eyJ{b80}.{b80}»
    client-key-data: «LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVkt{s200}==»
  password: «{p12}»
  password: "«{p12}»"
  password: |\n    «{p12}»\n    «{p12}»\n
  - name: DB_PASSWORD\n    value: «{p12}»
  - name: DB_PASSWORD\n    value: "«{p12}»"
{"name": "API_TOKEN", "value": "«{p12}»"}
X_TOKEN=«{p12}» run
export X_TOKEN=«{p12}»
export X_TOKEN="«{p12} {p12}»"
set -gx X_TOKEN «{W12}»
setenv X_TOKEN «{W12}»
ENV X_TOKEN=«{p12}»
ENV X_TOKEN «{W12}»
ARG NPM_TOKEN=«{W12}»
docker run -e DB_PASSWORD=«{p12}» -it x
$env:DB_PASSWORD = "«{p12}»"
X_SECRET='«{p12}»'
DB_PASS=«{p12}»
db.password=«{p12}»
spring.datasource.password=«{p12}»
password = "«{p12}»"
password: str = "«{p12}»"
const apiKey = '«{W12}»';
const apiKey: string = "«{W12}»";
let clientSecret = `«{W20}»`;
"password": "«{p12}»",
'password': '«{p12}',
"dbPassword": "«{p12}»",
"clientSecret" : "«{p12}»"
{"a": "{\"password\": \"«{p12}»\", \"b\": 1}"}
{"a": "{\"b\": \"{\\\"apiKey\\\": \\\"«{W12}»\\\"}\"}"}
{"command": "export TOKEN=\"«{p12}»\" && run"}
{"command": "export TOKEN=«{W12}»\nrun"}
config["password"] = "«{p12}»"
password => "«{p12}»",
:password => '«{p12}»',
<password>«{W12}»</password>
<add key="DbPassword" value="«{W12}»" />
user:me password:«{W12}»
login(password="«{p12}»")
login(user, password='«{p12}')
//registry.example.org/:_authToken=«{W36}»
//registry.example.org/:_auth=«{s20}==»
//registry.example.org/:_password=«{s20}==»
"auth": "«{s40}=="
identitytoken: «{b40}»
?access_token=«{W12}»&x=1
?api_key=«{W12}»&x=1
?token=«{W12}#x
-----BEGIN RSA PRIVATE KEY-----\n«{s64}»\n«{s64}»\n«{s20}==»\n-----END RSA PRIVATE KEY-----
-----BEGIN OPENSSH PRIVATE KEY-----\n«b3BlbnNzaC1rZXk{s54}»\n«{s70}»\n-----END OPENSSH PRIVATE KEY-----
-----BEGIN EC PRIVATE KEY-----\n«{s64}»\n«{s64}»
-----BEGIN ENCRYPTED PRIVATE KEY-----\n«{s64}»\n-----END ENCRYPTED PRIVATE KEY-----
-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,{X32}\n\n«{s64}»\n
-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n«{s64}»\n«{s64}»\n={s4}\n-----END PGP PRIVATE KEY BLOCK-----
cut off:\n«{s64}»\n«{s64}»\n«{s20}==»\n-----END RSA PRIVATE KEY-----
"""

# Where a key that tells itself apart may stand.
AROUND = (
    "{}", "key {} end", '{{"a": "{}"}}', "x={}", "X={} y", "https://h/?q={}&r=1", "a\n{}\nb", "({})", "'{}'", "`{}`",
    "<{}>", "[{}]", "a: {}", "a,{},b", '{{\\"a\\": \\"{}\\"}}', "a\\n{}\\nb", "\x1b[32m{}\x1b[0m",
    "{}.", "a;{};b", "%3D{}%26",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """A text of one form, and the parts of it that must go."""

    form: str
    text: str
    secrets: tuple[str, ...]


def filled(form: str, chance: random.Random) -> str:
    def put(m: re.Match[str]) -> str:
        if m[1] is None:
            return "-".join("".join(chance.choices(KINDS["x"], k=n)) for n in (8, 4, 4, 4, 12))
        word = "".join(chance.choices(KINDS[m[1]], k=int(m[2])))
        if m[1] == "p":  # a password does not begin with what begins an option, nor end with what ends a sentence
            word = f"{chance.choice(KINDS['L'])}{word[1:-1]}{chance.choice(KINDS['d'])}"
        return word

    return _PLACE.sub(put, form)


def keys(times: int, seed: int = 6, forms: str = KEYS) -> Iterator[Sample]:
    """Each key that tells itself apart, `times` times, in one of the surroundings after the other."""
    chance = random.Random(seed)
    n = 0
    for line in forms.strip().splitlines():
        name, form = line[:18].strip(), line[18:]
        for _ in range(times):
            n += 1
            key = filled(form, chance)
            yield Sample(name, AROUND[n % len(AROUND)].format(key), (key,))


def placed(times: int, seed: int = 6) -> Iterator[Sample]:
    """Each secret that its place tells, `times` times."""
    chance = random.Random(seed)
    for line in PLACES.strip("\n").splitlines():
        # In the forms that are one line of JSON, \n is what stands in the text.
        form = line if line.lstrip().startswith(("{", "[")) else line.replace("\\n", "\n").replace("\\\\", "\\")
        for _ in range(times):
            text = filled(form, chance)
            secrets = tuple(re.findall("«([^»']*)", text))
            yield Sample(form, text.replace("«", "").replace("»", ""), secrets)


def leaks(sample: Sample, said: str, window: int = 6) -> bool:
    """Whether as many letters of a secret that stand together are still there. A key's beginning, up to the last sign
    that is no letter among the first 20, is known to everyone."""
    return any(
        secret[i : i + window] in said for secret in sample.secrets for i in range(max(1, len(secret) - window + 1))
    )
