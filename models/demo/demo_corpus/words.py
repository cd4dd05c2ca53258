"""Word tables for the rewriting exercises."""

from demo_corpus.exchange import words


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    cells = (cell.split("=") for cell in table.split())
    return tuple((left, right) for left, right in cells)


OPPOSITES = _pairs(
    """hot=cold big=small good=bad up=down left=right fast=slow light=dark happy=sad old=new
    rich=poor early=late open=closed full=empty hard=soft high=low long=short loud=quiet
    strong=weak thick=thin wet=dry clean=dirty day=night true=false yes=no wide=narrow
    heavy=light easy=difficult first=last inside=outside near=far young=old black=white
    love=hate win=lose buy=sell push=pull above=below before=after begin=end always=never
    asleep=awake brave=afraid cheap=expensive deep=shallow front=back friend=enemy north=south
    east=west sharp=blunt smooth=rough tall=short warm=cool safe=dangerous start=stop"""
)
PLURALS = _pairs(
    """cat=cats dog=dogs house=houses tree=trees book=books car=cars apple=apples star=stars
    flower=flowers table=tables river=rivers bird=birds window=windows garden=gardens
    box=boxes fox=foxes bus=buses class=classes dish=dishes glass=glasses watch=watches
    city=cities baby=babies story=stories lady=ladies party=parties berry=berries country=countries
    leaf=leaves wolf=wolves knife=knives wife=wives life=lives half=halves
    man=men woman=women child=children foot=feet tooth=teeth mouse=mice goose=geese
    person=people sheep=sheep fish=fish ox=oxen day=days boy=boys key=keys toy=toys
    potato=potatoes tomato=tomatoes hero=heroes photo=photos piano=pianos
    block=blocks token=tokens worker=workers router=routers model=models cache=caches"""
)
PAST_TENSES = _pairs(
    """go=went run=ran see=saw eat=ate take=took give=gave come=came make=made write=wrote
    read=read sing=sang drink=drank swim=swam begin=began fly=flew know=knew grow=grew
    throw=threw draw=drew speak=spoke break=broke choose=chose drive=drove ride=rode rise=rose
    sleep=slept keep=kept feel=felt leave=left meet=met send=sent spend=spent build=built
    lose=lost find=found hold=held sit=sat stand=stood tell=told sell=sold say=said pay=paid
    think=thought buy=bought bring=brought catch=caught teach=taught fight=fought win=won
    walk=walked talk=talked play=played jump=jumped open=opened help=helped call=called
    work=worked look=looked ask=asked cook=cooked paint=painted stop=stopped plan=planned
    try=tried cry=cried study=studied carry=carried love=loved live=lived like=liked
    dance=danced smile=smiled"""
)
# Words that are spelled, raised and lowered: few, because each has to be learned by heart.
_COMMON = """
hello world apple banana orange lemon bread butter water milk coffee sugar
house garden window door table chair lamp clock paper pencil book letter
river mountain forest island ocean cloud storm rain snow wind
morning evening night summer winter spring
red green blue yellow black white silver golden
cat dog horse rabbit tiger lion eagle bear
happy quiet bright brave little strong sweet warm
music piano song dance story poem train ship bridge castle city street
token block cache router worker gateway model prompt mesh python server client
tree flower leaf stone fire light shadow star moon sun friend king queen
"""
COMMON = tuple(dict.fromkeys(words(_COMMON)))  # "orange" is a fruit and a colour
# Words that are copied, which needs no learning by heart: everything at hand.
ANY = tuple(
    dict.fromkeys(
        (*COMMON, *(word for pair in (*OPPOSITES, *PLURALS, *PAST_TENSES) for word in pair))
    )
)
